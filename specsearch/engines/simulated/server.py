"""`python -m specsearch.engines.simulated.server`: a server that behaves like `sglang.launch_server` without a GPU.

It takes SGLang's flags and, as JSON in SPECSEARCH_SIMULATED, the machine to pretend to be.
"""

import asyncio
import dataclasses
import errno
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from specsearch.engines.simulated.adaptive import AdaptiveSteps, candidates_of
from specsearch.engines.simulated.arguments import Resolved, build_parser, knobs_of, resolve
from specsearch.engines.simulated.environment import settled
from specsearch.engines.simulated.faults import Faults
from specsearch.engines.simulated.logs import Log
from specsearch.engines.simulated.model import Machine, Transport, default_fraction, memory_of
from specsearch.engines.simulated.processes import Crash, GpuMemory, Tree
from specsearch.engines.simulated.profiles import GPUS, TARGETS, drafter_of
from specsearch.engines.simulated.requests import Request
from specsearch.engines.simulated.scheduler import Drafting, Limits, Pace, Scheduler
from specsearch.engines.simulated.settings import Simulation, simulation_of_environment
from specsearch.engines.simulated.startup import Launch, check_warm_up, load
from specsearch.engines.simulated.texts import seed_of, words_of

if TYPE_CHECKING:
    from aiohttp.web import AppRunner

    from specsearch.engines.simulated.web import Web

_WARM_UP_PROMPT = "The capital city of France is"
_WARM_UP_TOKENS = 8
_LARGEST_GRAPH_BY_DEFAULT = 48
_WATCHDOG_S = 0.2


def main(argv: list[str] | None = None) -> None:
    """Parse, resolve, fork, load, serve."""
    args = build_parser().parse_args(argv)
    simulation = simulation_of_environment()
    resolved = resolve(args, GPUS[simulation.gpu], TARGETS[simulation.target])
    launch = prepare(simulation, resolved)
    launch.command = ("python", "-m", "sglang.launch_server", *(sys.argv[1:] if argv is None else argv))
    if "ignores_sigterm" in launch.faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for warning in resolved.warnings:
        launch.log.parent(warning)
    launch.log.parent(f"server_args={vars(args)}")
    asyncio.run(serve(launch))


def prepare(simulation: Simulation, resolved: Resolved) -> Launch:
    """Everything that is known before loading; the children are started here, with the environment as it is settled."""
    args = resolved.args
    knobs = knobs_of(resolved, os.environ)
    seed = f"{simulation.seed}/{args.weight_version.rpartition('-')[0]}"  # a trial's token ends with a random part
    faults = Faults.of_launch(simulation.faults, knobs, seed_of("faults", seed))
    os.environ.update(settled(os.environ, resolved, faults))
    machine = machine_of(simulation, resolved, os.environ, faults)
    if args.mem_fraction_static is None:
        largest = max(resolved.graph_batches, default=_LARGEST_GRAPH_BY_DEFAULT)
        args.mem_fraction_static = default_fraction(
            machine, prefill_tokens=args.chunked_prefill_size, largest_batch=largest
        )
    memory = memory_of(
        machine,
        mem_fraction_static=args.mem_fraction_static,
        prefill_tokens=args.chunked_prefill_size,
        max_total_tokens=args.max_total_tokens,
    )
    log = Log(ranks=args.tp_size > 1)
    tree = Tree.spawn(args.tp_size, faults, os.environ)
    gpus = GpuMemory.of_environment(os.environ, args.tp_size, faults)
    crash = Crash(tree, log, simulation.time_scale)
    return Launch(simulation, seed, resolved, machine, memory, faults, log, tree, gpus, crash)


def machine_of(simulation: Simulation, resolved: Resolved, env: Mapping[str, str], faults: Faults) -> Machine:
    """The simulated machine as these arguments and this environment set it up."""
    args, gpu = resolved.args, GPUS[simulation.gpu]
    is_ngram = args.speculative_algorithm == "NGRAM"
    drafts = resolved.tree is not None and not is_ngram
    drafter = drafter_of(args.speculative_draft_model_path, simulation.drafter) if drafts else None
    return Machine(
        gpu=gpu,
        target=TARGETS[simulation.target],
        tp_size=args.tp_size,
        drafter=drafter,
        tree=resolved.tree,
        is_ngram=is_ngram,
        draft_graph="draft_graph_missing" not in faults,
        graph_batches=resolved.graph_batches,
        custom_all_reduce=not args.disable_custom_all_reduce,
        transport=Transport.of(env, nvlink=gpu.nvlink),
    )


def scheduler_of(launch: Launch) -> Scheduler:
    """The scheduler of a loaded launch, with what its faults make of it."""
    args, machine, faults = launch.resolved.args, launch.machine, launch.faults
    if "graphs_ignored" in faults:
        machine = dataclasses.replace(machine, graph_batches=())
    pace = Pace(seed_of("pace", launch.seed), launch.simulation.noise)
    limits = Limits(
        args.max_running_requests, launch.memory.kv_tokens, args.chunked_prefill_size, args.decode_log_interval
    )
    return Scheduler(
        machine,
        pace,
        limits,
        launch.log,
        _drafting(launch),
        radix_cache=not args.disable_radix_cache,
        flushes="warm_cache" not in faults,
        decode_line="Tokens" if "odd_log" in faults else "Decode batch",
    )


def _drafting(launch: Launch) -> Drafting:
    args, drafter = launch.resolved.args, launch.machine.drafter
    adaptive = None
    if args.speculative_adaptive:
        adaptive = AdaptiveSteps(candidates_of(args.speculative_adaptive_config), args.speculative_num_steps)
    return Drafting(_skill(launch), drafter.context_length if drafter else None, adaptive)


def _skill(launch: Launch) -> float:
    """An EAGLE-3 drafter reads three of the target's layers, and only EAGLE3 gives it those (SM-01)."""
    drafter, algorithm = launch.machine.drafter, launch.resolved.args.speculative_algorithm
    if drafter is None or "nothing_accepted" in launch.faults:
        return 0.0
    return drafter.skill if drafter.is_eagle3 == (algorithm == "EAGLE3") else 0.0


async def serve(launch: Launch) -> None:
    """Load, listen, warm up, serve until asked to stop."""
    await load(launch)
    # Imported so late because it takes longer than everything before: a launch that fails in loading fails fast.
    from specsearch.engines.simulated.web import Web

    web = Web(launch, scheduler_of(launch))
    stop = asyncio.Event()
    running = asyncio.create_task(web.scheduler.run())
    site = await listen(web)
    if site is None:
        await asyncio.Event().wait()  # SGLang stays, with all its memory, and never answers
    _obey_signals(launch, stop)
    await warm_up(web)
    watchdog = asyncio.create_task(_watch_children(launch))
    await stop.wait()
    watchdog.cancel()
    await drain(web)
    running.cancel()
    launch.tree.end()
    launch.gpus.release()


async def listen(web: "Web") -> "AppRunner | None":
    """Bind the port; None, with SGLang's lines, when it is taken."""
    from aiohttp.web import AppRunner, TCPSite

    log, args = web.launch.log, web.launch.resolved.args
    log.web(f"Started server process [{os.getpid()}]")
    log.web("Waiting for application startup.")
    log.web("Application startup complete.")
    runner = AppRunner(web.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        if "port_taken" in web.launch.faults:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        await TCPSite(runner, args.host, args.port).start()
    except OSError as error:
        await runner.cleanup()
        where = f"error while attempting to bind on address ('{args.host}', {args.port})"
        log.web(f"[Errno {error.errno}] {where}: {os.strerror(error.errno or 0).lower()}", "ERROR")
        log.web("Waiting for application shutdown.")
        return None
    log.web(f"Uvicorn running on http://{args.host}:{args.port} (Press CTRL+C to quit)")
    return runner


async def warm_up(web: "Web") -> None:
    """The server's own first request; then it is ready."""
    launch = web.launch
    if not launch.resolved.args.skip_server_warmup:
        check_warm_up(launch)
        probe = Request(
            prompt=_WARM_UP_PROMPT,
            prompt_ids=tuple(words_of(_WARM_UP_PROMPT)),
            max_new_tokens=_WARM_UP_TOKENS,
            ignore_eos=True,
            temperature=0.0,
            vocabulary=launch.machine.target.vocabulary,
            internal=True,
        )
        web.scheduler.submit(probe)
        while probe.seen_finish is None:
            await probe.news()
    web.open()
    launch.log.parent("The server is fired up and ready to roll!")


def _obey_signals(launch: Launch, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def ask() -> None:
        launch.log.parent("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        stop.set()

    loop.add_signal_handler(signal.SIGINT, ask)
    if "ignores_sigterm" not in launch.faults:
        loop.add_signal_handler(signal.SIGTERM, ask)


async def drain(web: "Web") -> None:
    """Wait for every answer under way, however long that takes."""
    web.close()
    web.launch.log.parent(f"Gracefully exiting... Remaining number of requests {web.streaming}.")
    while web.streaming:
        await asyncio.sleep(0.02)


async def _watch_children(launch: Launch) -> None:
    """A scheduler that ends takes the server along, unless the fault is that nobody notices."""
    while "child_dies" not in launch.faults:
        await asyncio.sleep(_WATCHDOG_S)
        dead = launch.tree.dead()
        if dead:
            rank, exit_code = dead
            launch.log.parent(
                f"Subprocess scheduler_{rank} crashed with exit code {exit_code}. Triggering SIGQUIT for cleanup..."
            )
            launch.crash.kill(serving=True)


if __name__ == "__main__":
    main()
