"""The table of a run: each client's accuracy, and how often it has trained."""

from __future__ import annotations

from pathlib import Path

from adcs.run_folder import RunFolder


def table(folder: str | Path) -> str:
    """Return the table of a run folder, with the accuracies of the last evaluation."""
    lines = list(RunFolder.open(folder).records())
    if not lines:
        return "no round is done"
    last = lines[-1]
    evaluated = [line for line in lines if line.get("accuracy")]
    accuracy = {}
    if evaluated:
        accuracy = dict(zip(evaluated[-1]["clients"], evaluated[-1]["accuracy"], strict=True))
    width = max(6, *(len(str(client)) for client in last["clients"]))
    text = [f"{'client':>{width}}  trained   share  accuracy"]
    for client, count in zip(last["clients"], last["counts"], strict=True):
        value = accuracy.get(client)
        shown = "-" if value is None else f"{value:.3f}"
        text.append(f"{client!s:>{width}}  {count:>7}  {count / len(lines):>5.0%}   {shown:>8}")
    text.append("")
    text.append(f"{len(lines)} rounds, {last['updates']} client updates, {last['seconds']:.0f} s")
    if evaluated:
        at = evaluated[-1]
        text.append(
            f"accuracy after round {at['server_round']}: worst {at['worst']:.3f}, "
            f"worst 20 % {at['worst20']:.3f}, average {at['average']:.3f}"
        )
    return "\n".join(text)
