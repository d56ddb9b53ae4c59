"""Calls under faults, and the conditions that must hold after each fault."""

import asyncio
from collections import defaultdict
from random import Random

import httpx

from tests.chaos.callers import Message, Refused, is_end
from tests.chaos.clients import Client, Unacknowledged
from tests.chaos.processes import Fleet

BOUND = 45.0  # seconds for one call, faults included


class Seen:
    """The outcomes that clients observed in a run, and the violations found."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.hurt: set[int] = set()
        self.ended: list[tuple[int, str, Message]] = []
        self.tasks: list[tuple[int, str]] = []
        self.unacknowledged = 0


async def called(n: int, fault: str, client: Client, seen: Seen) -> None:
    """Make one call, and record violations."""
    tool = ("rerun", "fail")[n // 3 % 2]
    try:
        async with asyncio.timeout(BOUND):
            if n % 12 == 3:
                task = await client.cancelled(n, tool)
                lost = "lost" in task.get("result", {}).get("structuredContent", {})
                if task["status"] != "cancelled" and not (lost and seen.hurt):
                    seen.faults.append(f"{fault}: cancelled call {n} ends as {task}")
            elif n % 3 == 0:
                seen.ended.append((n, tool, await client.polled(n, tool)))
            elif n % 3 == 1:
                seen.ended.append((n, tool, await client.resumed(n, tool)))
            else:
                check_twins(n, *await client.keyed_twice(n), seen)
    except Unacknowledged:
        seen.unacknowledged += 1
    except TimeoutError:
        seen.faults.append(f"{fault}: call {n} hangs ({client.acknowledged})")
    except Refused as refused:
        seen.faults.append(f"{fault}: call {n} ({client.acknowledged}) is refused: {refused}")
    if client.acknowledged:
        seen.tasks.append((n, client.acknowledged))


def check_twins(n: int, one: Message, two: Message, seen: Seen) -> None:
    """Check that two calls with one key have the same result."""
    ids = {each["taskId"] for each in (one, two) if "taskId" in each}
    ends = [each.get("result", each).get("structuredContent") for each in (one, two)]
    if len(ids) > 1:
        seen.faults.append(f"call {n} has two tasks: {one} {two}")
    if ends != [{"n": n}] * 2 and not seen.hurt:
        seen.faults.append(f"call {n} has another end: {one} {two}")


async def check_tasks(fleet: Fleet, http: httpx.AsyncClient, random: Random, seen: Seen) -> None:
    """Check that every server reports the same end of each task, repeatedly."""
    client = Client(http, fleet, random)
    for n, id in seen.tasks:
        if n % 3 == 0:
            ends = [await client.at(server, id) for server in fleet.servers * 2]
            if any(each != ends[0] for each in ends):
                seen.faults.append(f"the end of call {n} changes: {ends}")


def check_jobs(fleet: Fleet, seen: Seen) -> None:
    """Check the results, and that only processes under a fault lost or repeated work."""
    began: dict[tuple[int, str], list[int]] = defaultdict(list)
    for n, step, pid in fleet.notes():
        began[n, step].append(pid)
    for n, tool, value in seen.ended:
        lost = value.get("lost")
        if lost == "call":  # the call had not become a task yet
            if not seen.hurt:
                seen.faults.append(f"call {n} is lost, and no process was hurt")
        elif not is_end(n, tool, value):
            seen.faults.append(f"call {n} of {tool} has a wrong end: {value}")
        elif lost and not {*began[n, lost]} & seen.hurt:
            seen.faults.append(f"job {lost} of call {n} is lost, and no process was hurt")
        for step in ("first", "second"):
            pids = began[n, step]
            if tool == "fail" and len(pids) > 1:
                seen.faults.append(f"job {step} of call {n} ran again: {pids}")
    for (n, step), pids in began.items():
        excused = {*pids} & seen.hurt
        if step == "edge" and len(pids) > 1 and not excused:
            seen.faults.append(f"keyed call {n} ran again: {pids}")
