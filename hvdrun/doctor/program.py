"""The command line of `hvdrun doctor`: its words, its page, and its exit code."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches

from hvdrun.doctor.bandwidth import choose_backends, make_command, measure
from hvdrun.doctor.visits import Examination, visit
from hvdrun.errors import UnknownOptionError, UsageError
from hvdrun.hosts.findings import Finding, Host, count, describe_size
from hvdrun.hosts.preparation import add_hosts, prepare
from hvdrun.options.flags import find_option
from hvdrun.options.programs import DOCTOR
from hvdrun.options.request import make_job
from hvdrun.options.words import Typed, gather, read_words
from hvdrun.spec.command import LookupContext
from hvdrun.spec.jobspec import JobSpec
from rendezvous.bootstrap import Backend

FOUND = 3  # the exit code if there is a finding
_NO_COMMAND = ("true",)


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a command line.

    spec: the job of which the hosts are examined.
    as_json, cleans, tests: the options --json, --clean and --test.
    typed: the options that name these hosts.
    """

    spec: JobSpec
    as_json: bool
    cleans: bool
    tests: bool = False
    typed: tuple[Typed, ...] = ()


def read_request(words: Sequence[str]) -> Request | str:
    """The request, or the page that answers it.

    Raises:
        HvdrunError: the command line is wrong, or names something that does not exist.
    """
    own: dict[str, bool] = {}

    def find(word: str) -> Typed:
        known = {flag: option for option in DOCTOR.options for flag in option.flags}
        if word in known:
            own[known[word].dest] = True
            return Typed(known[word], word)
        try:
            return find_option(word)
        except UnknownOptionError:
            for nearest in get_close_matches(word, known, 1):
                raise UnknownOptionError(word, nearest) from None
            raise

    typed, start = read_words(words, find)
    if "help" in own:
        from hvdrun.options.pages import render_program_help  # noqa: PLC0415 - few ask for it

        return render_program_help(DOCTOR)
    of_job = [each for each in typed if each[0] not in DOCTOR.options]
    spec = make_job(gather(of_job), tuple(words[start:]) or _NO_COMMAND, os.environ, lambda _: 1)
    if spec.remote.joining is not None:
        raise UsageError("hvdrun doctor cannot visit hosts whose agents join by themselves: name them with -H.")
    return Request(spec, "json" in own, "clean" in own, "test" in own, tuple(of_job))


def run(request: Request) -> tuple[str, int]:
    """Examine the hosts: the page, and the exit code.

    Raises:
        HvdrunError: this machine lacks what the job needs.
    """
    spec = complete(request.spec)
    found = asyncio.run(visit(spec, cleans=request.cleans))
    if request.tests:
        test(found, request.typed, spec)
    page = render_json(found) if request.as_json else render(found, cleaned=request.cleans)
    return page, FOUND if found.findings else 0


def test(found: Examination, typed: Sequence[Typed], spec: JobSpec) -> None:
    """Add the bandwidth that the hosts reach with each backend, and findings about it."""
    if objection := find_objection(found, spec):
        found.findings.append(Finding(f"the hosts were not tested: {objection}", ()))
        return

    wanted = spec.workers.backend
    backends = choose_backends(found.hosts, wanted)
    for backend in backends:
        measured = measure(make_command(typed, spec, backend))
        if isinstance(measured, Finding):
            found.findings.append(measured)
            continue
        found.measured.append(measured)
        found.findings += measured.find_slow()
        if measured.has_ucc and wanted is None and Backend.UCC not in backends:
            backends.append(Backend.UCC)


def find_objection(found: Examination, spec: JobSpec) -> str:
    """Why no job can run on these hosts; "" if one can."""
    names = [host.name for host in spec.workers.hosts]
    if away := [name for name in names if name not in found.hosts]:
        return f"{away[0]} could not be visited"
    if lacking := [name for name in names if "torch" not in found.hosts[name].facts.packages]:
        return f"{lacking[0]} has no torch"
    if len(names) > 1 and not found.milliseconds:
        return "their connections could not be measured"
    return ""


def complete(spec: JobSpec) -> JobSpec:
    """The job with all its hosts, each with all its slots, prepared to be visited."""
    context = LookupContext(spec.workers.directory, os.environ.get("PATH"), sys.executable)
    if spec.discovers:
        from hvdrun.hosts.discovery_script import find_now  # noqa: PLC0415 - few jobs have a script

        spec = add_hosts(spec, find_now(spec), context)
    size = sum(host.slots for host in spec.workers.hosts)
    spec = replace(spec, workers=replace(spec.workers, size=size), limits=replace(spec.limits, elasticity=None))
    return prepare(spec, context)[0]


def render(found: Examination, *, cleaned: bool = False) -> str:
    """The page as text."""
    lines = [_describe_host(name, host) for name, host in found.hosts.items()]
    if found.milliseconds:
        (one, other), slowest = max(found.milliseconds.items(), key=lambda item: item[1])
        pairs = f"{len(found.milliseconds)} directions between hosts"
        lines.append(f"{pairs} connect, the slowest in {slowest:.1f} ms: {one} to {other}")
    lines += [measured.describe() for measured in found.measured]
    if lines:
        lines.append("")
    lines.append(f"{count(len(found.findings), 'finding')}:" if found.findings else "nothing is wrong")
    for number, finding in enumerate(found.findings, 1):
        lines.append(f"{number}. {finding.what}")
        if finding.remedy:
            lines.append(f"   {finding.remedy}")
    if cleaned and any(host.facts.leftovers or host.facts.folders for host in found.hosts.values()):
        lines.append("What earlier jobs had left is removed.")
    return "\n".join(lines)


def _describe_host(name: str, host: Host) -> str:
    facts = host.facts
    packages = [f"{package} {facts.packages[package]}" for package in ("torch", "mxnet") if package in facts.packages]
    has = [
        f"Python {facts.python}",
        *packages,
        count(facts.cpus, "CPU"),
        f"{describe_size(facts.memory)} of memory free",
    ]
    if facts.accelerators:
        driver = f" (driver {facts.driver})" if facts.driver else ""
        has.append(f"{count(facts.accelerators, 'accelerator')}{driver}")
    if facts.proxies:
        has.append(f"a proxy in {facts.proxies[0]}, which hvdrun does not use")
    return f"{name}: {', '.join(has)}"


def render_json(found: Examination) -> str:
    """The page as JSON."""

    def describe(finding: Finding) -> dict[str, object]:
        return {"what": finding.what, "hosts": list(finding.hosts), "remedy": finding.remedy}

    return json.dumps(
        {
            "version": 1,
            "hosts": {
                name: {**asdict(host.facts), "slots": host.slots, "clock_offset": round(host.clock_offset, 3)}
                for name, host in found.hosts.items()
            },
            "pairs": [
                {"from": one, "to": other, "milliseconds": round(value, 3)}
                for (one, other), value in found.milliseconds.items()
            ],
            "tests": [
                {
                    "backend": measured.backend,
                    "bytes": measured.size,
                    "workers": measured.workers,
                    "milliseconds": round(measured.seconds * 1000, 3),
                    "pairs": [
                        {
                            "between": pair.names,
                            "milliseconds": round(pair.seconds * 1000, 3),
                            "latency_milliseconds": round(pair.latency * 1000, 3),
                        }
                        for pair in measured.pairs
                    ],
                }
                for measured in found.measured
            ],
            "findings": [describe(finding) for finding in found.findings],
        },
        indent=1,
    )
