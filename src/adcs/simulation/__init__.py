"""Many clients on one machine: data, partitions, models, a virtual network, the engine."""
