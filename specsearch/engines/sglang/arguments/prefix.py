"""The words before the launch command: filled in for one launch, and what a container needs that they lack."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from specsearch.config import EngineConfig
from specsearch.engines.sglang.fitness import Findings
from specsearch.launch import LaunchPlan, Prefix, expand, is_secret, placeholders_of

# A server in one of these is no child of its client, and inherits neither variables nor network.
RUNTIMES = ("docker", "podman", "nerdctl")
# These hand on what they have, and the server is their child.
OPEN_RUNTIMES = ("apptainer", "singularity")
_OF_THE_TRIAL = ("name", "tmpdir")
_ENV = "{env}"


def with_prefix(
    plan: LaunchPlan, config: EngineConfig, *, trial: str, gpu_indices: Sequence[int] | None, tmpdir: Path
) -> LaunchPlan:
    """The plan behind the words of engine.command_prefix, and with engine.stop_command."""
    if not config.command_prefix:
        return plan
    values = _values(f"specsearch-{trial}", gpu_indices or (), tmpdir)
    return replace(
        plan,
        prefix=_prefix(config.command_prefix, values),
        serve_prefix=_prefix(list(_serving(config.command_prefix)), values),
        stop_argv=tuple(expand(word, values) for word in config.stop_command),
    )


def probe_prefix(config: EngineConfig) -> tuple[str, ...]:
    """The words before an interpreter that is only asked a question; the same in one process, so that it is asked once.

    Of the environment a container is given PYTHONPATH alone.
    """
    gpus = () if config.args.get("device") == "cpu" else tuple(range(config.tp_size))
    values = _values(f"specsearch-probe-{os.getpid()}", gpus, Path(tempfile.gettempdir()))
    path = config.env.get("PYTHONPATH")
    given = ("-e", f"PYTHONPATH={path}") if path else ()
    prefix = _prefix(config.command_prefix, values)
    return (*prefix.words, *(given if prefix.hands_env else ()), *prefix.rest)


def python_of(config: EngineConfig) -> str:
    """The interpreter that has SGLang: the one named, else this one; a container has its own."""
    if config.python:
        return str(Path(config.python).expanduser())
    return "python3" if _runtime(config, *RUNTIMES, *OPEN_RUNTIMES) else sys.executable


def examine_prefix(found: Findings, config: EngineConfig) -> None:
    """Does what stands before the command fit the program that it names?"""
    runtime, open_runtime = _runtime(config, *RUNTIMES), _runtime(config, *OPEN_RUNTIMES)
    names = placeholders_of(config.command_prefix)
    if "gpus" in names and config.args.get("device") == "cpu":
        found.errors.append("engine.command_prefix: {gpus} has no meaning for an engine on the CPU; take it out")
    if open_runtime and "env" in names:
        found.errors.append(
            f"engine.command_prefix: {{env}} is for docker and podman; {open_runtime} hands its environment on and "
            "reads -e as an order not to: take {env} out"
        )
    if open_runtime and {"-e", "--cleanenv", "-C", "--containall"} & set(config.command_prefix):
        found.warnings.append(f"engine.command_prefix: {_unseen(open_runtime)}; leave --cleanenv and --containall out")
    if runtime:
        found.warnings += [f"engine.command_prefix: {said}" for said in _container_warnings(config, runtime, names)]


def _container_warnings(config: EngineConfig, runtime: str, names: Sequence[str]) -> Iterator[str]:
    words = config.command_prefix
    if "env" not in names and "--env-host" not in words:
        yield f"{_unseen(runtime)}; put {{env}} among the options of {runtime}"
    yield from _dropped_secrets(config, names)
    if "exec" in words and "run" not in words:
        yield f"{runtime} exec hands no signal on, and what it started outlives it; use {runtime} run"
        return
    if {"-d", "--detach"} & set(words):
        yield f"a detached container looks like a server that has exited at once; take -d out of {runtime} run"
    if not _has(words, ("--network", "--net"), "host"):
        yield "servers listen on 127.0.0.1, which a container has for itself; add --network=host"
    if config.tp_size > 1 and not _has(words, ("--ipc", "--shm-size")):
        yield f"{runtime} gives a container 64 MB of shared memory, too little for NCCL; add --ipc=host"
    if not config.stop_command:
        yield (
            f"a container outlives its {runtime} client when that is killed, and then keeps the GPUs; "
            f'add --name {{name}} and engine.stop_command: [{runtime}, kill, "{{name}}"]'
        )


def _dropped_secrets(config: EngineConfig, names: Sequence[str]) -> Iterator[str]:
    """Secrets are handed on by name alone, so that the client itself must have them, also behind sudo."""
    programs = [Path(word).name for word in config.command_prefix]
    if "sudo" not in programs or "env" not in names:
        return
    options = config.command_prefix[programs.index("sudo") + 1 :]
    options = options[: next((at for at, word in enumerate(options) if Path(word).name in RUNTIMES), None)]
    if {"-E", "--preserve-env"} & set(options):
        return
    kept = {name for word in options if word.startswith("--preserve-env=") for name in word[15:].split(",")}
    dropped = [name for name, value in sorted(config.env.items()) if is_secret(name, value) and name not in kept]
    if dropped:
        yield (
            f"sudo drops {', '.join(dropped)}, which the container is to take over from its environment; "
            f"write sudo --preserve-env={','.join(dropped)}"
        )


def _unseen(runtime: str) -> str:
    return (
        f"the server in the container will not see the variables that {runtime} is started with, so that those of "
        "engine.env and of the search space would have no effect"
    )


def _runtime(config: EngineConfig, *names: str) -> str | None:
    """The container program among the words, also behind `sudo` or `srun`."""
    return next((word for word in (Path(word).name for word in config.command_prefix) if word in names), None)


def _has(words: Sequence[str], options: Sequence[str], value: str | None = None) -> bool:
    """Whether one of the options is given, with this value or with any, as `--a=b` or `--a b`."""
    given = [tuple(word.split("=", 1)) for word in words if "=" in word] + list(pairwise(words))
    return any(option in options and value in (None, said) for option, said in given)


def _values(name: str, gpus: Sequence[int], tmpdir: Path) -> Mapping[str, str]:
    return {"name": name, "gpus": ",".join(map(str, gpus)), "tmpdir": str(tmpdir)}


def _prefix(words: Sequence[str], values: Mapping[str, str]) -> Prefix:
    """The words for one launch.

    A container that is given some GPUs numbers them from 0, so that CUDA_VISIBLE_DEVICES would name others; a folder
    that it is not given cannot be its TMPDIR.
    """
    names = placeholders_of(words)
    at = words.index(_ENV) if _ENV in words else len(words)
    kept_back = {"CUDA_VISIBLE_DEVICES"} if "gpus" in names else set()
    kept_back |= set() if "tmpdir" in names else {"TMPDIR"}
    return Prefix(
        words=tuple(expand(word, values) for word in words[:at]),
        rest=tuple(expand(word, values) for word in words[at + 1 :]),
        hands_env=_ENV in words,
        kept_back=frozenset(kept_back),
    )


def _serving(words: Sequence[str]) -> list[str]:
    """The words without those of a single trial, and without the options that they are the values of."""
    kept: list[str] = []
    for word in words:
        if not any(name in _OF_THE_TRIAL for name in placeholders_of([word])):
            kept.append(word)
        elif kept and kept[-1].startswith("-") and "=" not in kept[-1] and not word.startswith("-"):
            kept.pop()
    return kept
