"""DivFL."""

from __future__ import annotations

import adcs
from adcs import ClientReport


def test_one_client_of_each_cluster_is_chosen(clustered, probed):
    scheduler = probed(adcs.DivFL(), 0, clustered())
    assert sorted(c // 3 for c in scheduler.select(0, range(15), 5).clients) == [0, 1, 2, 3, 4]


def test_cluster_weights_add_up_to_the_number_of_clients(clustered, probed):
    scheduler = probed(adcs.DivFL(by_cluster=True), 0, clustered())
    assert sum(scheduler.select(0, range(15), 4).weights) == 15


def test_all_clients_are_probed_every_twenty_rounds():
    scheduler = adcs.DivFL()
    scheduler.observe(0, [ClientReport(c, 0, update=[1.0, c]) for c in range(3)], "probe")
    asked = [
        server_round
        for server_round in range(1, 61)
        if scheduler.request(server_round, range(3), 2).clients
    ]
    assert asked == [20, 40, 60]
