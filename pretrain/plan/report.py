"""A plan as text: tables for people, and the few lines that training says at its start."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from pretrain.plan.device import GIB

_WIDTH = 110
_STATE_ROWS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "masters": "masters",
    "moments": "moments",
    "buckets": "buckets",
    "total": "= model states",
    "host": "(host, by offload)",
    "backward": "in backward, about",
    "step": "in the update, about",
}
_ACTIVATION_ROWS = {
    "layers": "layers",
    "embeddings": "embeddings",
    "head": "head",
    "stream": "stream",
    "total": "= activations, about",
}


def size(number: float) -> str:
    """Return bytes in the unit that suits them."""
    for unit, factor in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:,.2f} {unit}"
    return f"{number:,.0f} B"


def duration(seconds: float) -> str:
    """Return days, hours and minutes."""
    minutes = round(seconds / 60)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    return f"{days} d {hours} h {minutes} min" if days else f"{hours} h {minutes} min"


def compact_lines(values: Mapping[str, Any]) -> list[str]:
    """Return the plan in a few lines."""
    stage = _own_stage(values)
    states, taken = stage["states"], stage["activations"]
    parts = ", ".join(f"{part} {_millions(count)}" for part, count in values["parameters"]["parts"].items())
    lines = [
        f"parameters: {parts}",
        f"memory a rank, ZeRO {stage['stage']}: model states {size(states['total'])} (parameters "
        f"{size(states['parameters'])}, gradients {size(states['gradients'])}, masters {size(states['masters'])}, "
        f"moments {size(states['moments'])}), buckets {size(states['buckets'] + states['backward'])}, activations up "
        f"to {size(taken['total'])}: {size(stage['peak'])} at most",
        _traffic_line(values),
        _run_line(values["run"]),
    ]
    if states["host"]:
        lines.insert(2, f"on the host, by offload: {size(states['host'])} a rank")
    return lines + warnings_of_plan(values)


def warnings_of_plan(values: Mapping[str, Any]) -> list[str]:
    """Return what is worth a second look, a line each."""
    lines, memory = [], values["memory"]
    if memory["fits"] is False:
        lines.append(
            f"WARNING: {size(memory['peak'])} may not fit: a device has {size(memory['device_bytes'])}, of which "
            f"{memory['usable_share']:.0%} can be used"
        )
    epochs = values["run"]["epochs"]
    if epochs is not None and epochs < 1:
        lines.append(f"WARNING: {epochs:.2f} epochs: {1 - epochs:.0%} of the text is never seen")
    return lines


def write_report(values: Mapping[str, Any], stream: TextIO) -> None:
    """Write the tables."""
    buffer = io.StringIO()
    _print_report(values, Console(file=buffer, width=_WIDTH, highlight=False, markup=False))
    stream.write("".join(f"{line.rstrip()}\n" for line in buffer.getvalue().strip("\n").split("\n")))


def _print_report(values: Mapping[str, Any], console: Console) -> None:
    table = _table("", "")
    batch = values["batch"]
    table.add_row(
        "run",
        f"{values['name']}: {values['world_size']} ranks, {values['device']}, {values['precision']}, "
        f"ZeRO {values['zero_stage']}",
    )
    table.add_row(
        "batch",
        f"{batch['train_batch_size']:,} pairs = {batch['train_micro_batch_size_per_gpu']} a micro-batch x "
        f"{batch['gradient_accumulation_steps']} micro-steps x {values['world_size']} ranks",
    )
    parts = ", ".join(f"{part} {count:,}" for part, count in values["parameters"]["parts"].items())
    table.add_row("parameters", f"{values['parameters']['total']:,}: {parts} (decoder tied to the word table)")
    table.add_row("traffic", _traffic_line(values).partition(": ")[2])
    table.add_row("length", _run_line(values["run"]))
    table.add_row("time", _time_line(values["time"]))
    table.add_row("lr", ", ".join(f"step {int(step):,}: {lr:.3g}" for step, lr in values["lr"].items()) or "unknown")
    console.print(table)
    _memory_table(values, console)
    lines = warnings_of_plan(values) + [f"NOTE: {note}" for note in values["notes"]]
    lines += [f"FAULT: {fault}" for fault in values["faults"]]
    if values["faults"]:
        lines.append("The figures are those of the JSON without what is at fault. Training would refuse it.")
    for line in lines or ["Nothing is wrong."]:
        console.print(line, soft_wrap=True)


def _memory_table(values: Mapping[str, Any], console: Console) -> None:
    memory = values["memory"]
    table = _table(
        "memory a rank",
        *(
            f"ZeRO {stage['stage']}{' *' if stage['stage'] == values['zero_stage'] else ''}"
            for stage in memory["stages"]
        ),
    )
    for name, label in _STATE_ROWS.items():
        table.add_row(label, *(size(stage["states"][name]) for stage in memory["stages"]))
    for name, label in _ACTIVATION_ROWS.items():
        table.add_row(label, *(size(stage["activations"][name]) for stage in memory["stages"]))
    table.add_row("peak", *(size(stage["peak"]) for stage in memory["stages"]))
    other = "without" if memory["stages"][0]["checkpointing"] else "with"
    table.add_row(
        f"{other} checkpointing", *(size(stage["peak_with_other_checkpointing"]) for stage in memory["stages"])
    )
    console.print(table)
    console.print(f"* the JSON's. Activations: {memory['stream']['source']} = {memory['stream']['tokens']:,} tokens.")
    if memory["peak_of_mean_stream"] is not None:
        console.print(
            f"With average pairs ({memory['mean_stream']['tokens']:,} tokens) the peak is "
            f"{size(memory['peak_of_mean_stream'])}."
        )
    console.print(_verdict(memory), soft_wrap=True)


def _verdict(memory: Mapping[str, Any]) -> str:
    if memory["device_bytes"] is None:
        return f"Fits? Unknown: {memory['device_source']}."
    text = (
        f"{'Fits' if memory['fits'] else 'Does not fit'} into {size(memory['device_bytes'])} "
        f"({memory['device_source']}), of which {memory['usable_share']:.0%} can be used."
    )
    found = memory["suggestion"]
    if found is not None:
        text += (
            f"\nSuggested: zero_optimization.stage {found['stage']}, train_micro_batch_size_per_gpu "
            f"{found['micro_batch']}, gradient_accumulation_steps {found['accumulation']}: {size(found['peak'])}."
        )
    elif memory.get("nothing_fits"):
        text += "\nNo ZeRO stage fits even one pair: activation checkpointing, offload, or larger devices."
    return text


def _traffic_line(values: Mapping[str, Any]) -> str:
    traffic = values["traffic_bytes_per_step"]
    text = f"traffic: {size(traffic['algorithm'])} sent a step and rank"
    if traffic["deepspeed"] == traffic["algorithm"]:
        return text
    return f"{text} by ZeRO's algorithm, {size(traffic['deepspeed'])} as DeepSpeed all-reduces gradients"


def _run_line(run: Mapping[str, Any]) -> str:
    text = f"{run['steps']:,} steps, {run['pairs']:,} pairs, {run['tokens'] / 1e6:,.1f}M tokens"
    if run["epoch"] is None:
        return f"{text} at most"
    epoch = run["epoch"]
    about = "" if epoch["is_exact"] else "about "
    return (
        f"{text} = {about}{run['epochs']:,.2f} epochs of {epoch['pairs']:,.0f} pairs, {epoch['text_tokens']:,} tokens "
        f"on disk ({epoch['source']})"
    )


def _time_line(time: Mapping[str, Any] | None) -> str:
    if time is None:
        return "unknown: give --tokens-per-second (a number, a run dir, or the JSON of zerobert bench step)"
    return (
        f"{duration(time['seconds'])}, {time['device_hours']:,.1f} device-hours, at {time['tokens_per_second']:,.0f} "
        f"tokens/s on {time['measured_on']} ({time['source']})"
    )


def _own_stage(values: Mapping[str, Any]) -> Mapping[str, Any]:
    stages = values["memory"]["stages"]
    own: Mapping[str, Any] = next((s for s in stages if s["stage"] == values["zero_stage"]), stages[0])
    return own


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f}M" if count >= 50_000 else f"{count:,}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns), pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or len(columns) == 2 else "right")
    return table
