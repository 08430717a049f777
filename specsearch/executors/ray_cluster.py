"""The Ray cluster of a study: a fresh local one or one that is joined, and whether trials fit on its nodes."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module

import ray
from ray._private.authentication.authentication_token_setup import (
    enable_token_auth_by_default,
    ensure_token_if_auth_enabled,
)
from ray._private.state import available_resources_per_node
from ray._private.worker import BaseContext
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from specsearch.clock import Clock
from specsearch.errors import HostNotFit
from specsearch.executors.ray_local import NO_RAY, local_ray
from specsearch.executors.ray_watch import GOODBYE_THREAD, TUNE_THREAD
from specsearch.trial import StopFlag

# Read by Ray's processes or by Tune while a session lasts; servers never see them (LaunchPlan.environment).
RAY_ENVIRONMENT: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's own 15 would be every server's
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # with verbose=0 Tune then prints nothing of its own
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a FutureWarning in every worker without a GPU
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is the command's business
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",  # Tune's snapshots are never read: the rows are the memory
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
OBJECT_STORE_BYTES = 100 << 20  # only results travel; Ray's own choice is 30 % of the host's memory
PROBE_POLL_S = 0.2
CONNECT_S = 5.0
GOODBYE_S = 8.0  # usually 1 s; a Ray that hangs is left to itself


@dataclass(frozen=True, slots=True)
class Demand:
    """What a study asks of a node."""

    gpus_per_trial: int  # 0 for an engine on the CPU
    trials_per_node: int = 1

    def slots_on(self, gpus: int) -> int:
        """How many trials a node with so many GPUs takes at once."""
        return min(self.trials_per_node, gpus // self.gpus_per_trial) if self.gpus_per_trial else self.trials_per_node

    def require(self, gpus_of: Mapping[str, int]) -> None:
        """Raise HostNotFit where no node can ever take what is asked; asked and available are named."""
        if any(self.slots_on(gpus) >= self.trials_per_node for gpus in gpus_of.values()):
            return
        asked = self.gpus_per_trial * self.trials_per_node
        per_node = ", ".join(f"{node} has {gpus}" for node, gpus in gpus_of.items())
        shared = f" ({self.trials_per_node} trials of {self.gpus_per_trial})" if self.trials_per_node > 1 else ""
        largest = max(gpus_of.values(), default=0)
        problem = f"the study needs {asked} GPUs on one node{shared}, the largest node has {largest}"
        raise HostNotFit("no node is large enough", [problem + (f": {per_node}" if per_node else "")])


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster that is alive."""

    id: str
    name: str  # the host's, made unique where nodes share a host
    gpus: int
    cpus: int


def _never_lost() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class RaySession:
    """A connection to Ray; `lost` says, in a sentence and without waiting, that a local Ray has gone."""

    is_local: bool
    dashboard_url: str | None
    asks_for_a_token: bool
    lost: Callable[[], str | None] = _never_lost


@contextmanager
def ray_session(
    address: str | None, *, demand: Demand, gpus: Sequence[int] | None, include_dashboard: bool = True
) -> Iterator[RaySession]:
    """Connect to Ray for as long as the study runs; raises HostNotFit when its nodes are too small.

    Without an address, and outside a Ray job, a local Ray is started. `gpus` are the indices of this host's GPUs
    that trials may have, or those that the simulated engine pretends to have; None leaves it to Ray to find them.
    """
    joined = address or os.environ.get("RAY_ADDRESS")
    logging.getLogger("ray._private.authentication").setLevel(
        logging.ERROR
    )  # says in 200 letters that a token is asked
    if not joined and gpus is not None:
        demand.require({"this host": len(gpus)})
    with ExitStack() as stack:
        stack.enter_context(_environment(RAY_ENVIRONMENT))
        stack.enter_context(_words_to_the_study_log())
        stack.enter_context(_visible(None if joined else gpus))
        session = _joined(joined, stack) if joined else _local(demand, gpus, include_dashboard, stack)
        stack.enter_context(_words_to_the_study_log())  # again, for ray.init removes what listens
        fitting_nodes(demand)
        yield session


def _joined(address: str, stack: ExitStack) -> RaySession:
    context = _join(address)
    stack.callback(_say_goodbye)
    url = context.dashboard_url
    return RaySession(False, f"http://{url}" if url else None, _asks_for_a_token())


def _local(demand: Demand, gpus: Sequence[int] | None, include_dashboard: bool, stack: ExitStack) -> RaySession:
    """Ask for a token as `ray.init` does for the Ray that it starts itself, then start one and connect to it."""
    enable_token_auth_by_default()
    ensure_token_if_auth_enabled(None, create_token_if_missing=True)
    asked = {
        "num_cpus": max(2, demand.trials_per_node),  # an idle process per CPU, which servers would feel
        "num_gpus": None if gpus is None else len(gpus),
        "include_dashboard": include_dashboard,
        "object_store_memory": OBJECT_STORE_BYTES,
    }
    own = stack.enter_context(local_ray(asked, meanwhile=lambda: import_module("ray.tune")))
    try:
        ray.init(address=own.address, _node_ip_address=own.ip, configure_logging=False, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise HostNotFit("Ray", [f"the local Ray does not let us in: {error}", NO_RAY]) from error
    stack.callback(_say_goodbye)
    return RaySession(True, own.dashboard_url, _asks_for_a_token(), own.lost)


def _asks_for_a_token() -> bool:
    return os.environ.get("RAY_AUTH_MODE") == "token"


def _say_goodbye() -> None:
    """Disconnect from a Ray that answers; one that does not is left without a word.

    A thread that hangs in a call to Ray would start a new Ray when it finds itself disconnected.
    """
    if not any(thread.name == TUNE_THREAD for thread in threading.enumerate()):
        leaving = threading.Thread(target=ray.shutdown, name=GOODBYE_THREAD, daemon=True)
        leaving.start()
        leaving.join(GOODBYE_S)
        if not leaving.is_alive():
            return
    logging.getLogger("ray").setLevel(logging.CRITICAL + 1)


def _join(address: str) -> BaseContext:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if host and port.isdecimal():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        # Workers of a cluster that somebody else started have none of RAY_ENVIRONMENT.
        stay = {"env_vars": {"RAY_CHDIR_TO_TRIAL_DIR": RAY_ENVIRONMENT["RAY_CHDIR_TO_TRIAL_DIR"]}}
        return ray.init(address=address, runtime_env=stay, configure_logging=False, log_to_driver=False)
    except (OSError, ValueError) as error:  # ConnectionError is an OSError; ValueError: what is no address
        hint = "; a cluster that asks for a token wants RAY_AUTH_MODE=token and its token in ~/.ray/auth_token"
        raise HostNotFit("Ray", [f"no cluster lets us in at {address}: {error}{hint}"]) from error


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("specsearch.ray").handle(record)


@contextmanager
def _words_to_the_study_log() -> Iterator[None]:
    """What Ray and Tune have to say stands in the study's log, and not between the lines of a terminal."""
    logger = logging.getLogger("ray")
    before = (logger.handlers, logger.propagate)
    logger.handlers, logger.propagate = [_Forward(logging.WARNING)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before


@contextmanager
def _environment(variables: Mapping[str, str], *, override: bool = False) -> Iterator[None]:
    """Set variables and put everything back; what the user exported wins unless it is to be overridden."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if override or before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _visible(gpus: Sequence[int] | None) -> AbstractContextManager[None]:
    """Ray deals out the GPUs that this variable lists, by the names it gives them, and refuses to deal out more."""
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
    return _environment(shown, override=True)


def alive_nodes() -> list[Node]:
    """The nodes of the cluster, largest first."""
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    hosts = [node["NodeManagerHostname"] for node in alive]
    nodes = []
    for node, host in zip(alive, hosts, strict=True):
        name = host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:6]}"
        resources = node["Resources"]
        nodes.append(Node(node["NodeID"], name, int(resources.get("GPU", 0)), int(resources.get("CPU", 0))))
    return sorted(nodes, key=lambda node: (-node.gpus, node.name))


def fitting_nodes(demand: Demand) -> list[Node]:
    """The nodes that take trials, largest first; raises HostNotFit where there is none."""
    nodes = alive_nodes()
    demand.require({node.name: node.gpus for node in nodes})
    return [node for node in nodes if demand.slots_on(node.gpus)]


def places(demand: Demand, nodes: Sequence[Node]) -> tuple[dict[str, float], int]:
    """What one trial reserves, in one bundle and so on one node, and how many trials run at once.

    As many GPUs as it uses, unless a node could then take more trials than it is to: with several nodes each
    trial reserves its whole share of a node, by which nodes of other sizes may fall out. A trial without GPUs
    reserves its share of the CPUs instead.
    """
    asked, shares = demand.gpus_per_trial, demand.trials_per_node
    if not asked:
        return {"CPU": max(1, min(node.cpus for node in nodes) // shares)}, shares * len(nodes)
    largest = max(node.gpus for node in nodes)
    if len(nodes) > 1 and largest // asked > shares:
        fewest = max(asked, largest // (shares + 1) + 1)  # with fewer the largest node could take one more
        asked = max(fewest, min(node.gpus // shares for node in nodes if node.gpus // shares >= fewest))
    return {"CPU": 1, "GPU": asked}, sum(min(shares, node.gpus // asked) for node in nodes)


def wait_for_room(bundle: Mapping[str, float], *, timeout_s: float, clock: Clock, stop: StopFlag) -> None:
    """Return once one trial fits somewhere, or on a stop.

    Raises HostNotFit at once when none ever will, else after the timeout.
    """
    group = placement_group([dict(bundle)], strategy="STRICT_PACK")
    deadline = clock.monotonic() + timeout_s
    try:
        while not group.wait(timeout_seconds=0) and stop.reason is None:
            if _state(group) == "INFEASIBLE" or clock.monotonic() >= deadline:
                raise HostNotFit("no node has room for a trial", [_shortfall(bundle, timeout_s)])
            clock.sleep(PROBE_POLL_S)
    finally:
        remove_placement_group(group)


def _state(group: PlacementGroup) -> str:
    return str(placement_group_table(group)["stats"]["scheduling_state"])


def _shortfall(bundle: Mapping[str, float], timeout_s: float) -> str:
    free = available_resources_per_node()  # type: ignore[no-untyped-call]
    asked = " and ".join(f"{amount:g} {kind}s" for kind, amount in bundle.items())
    per_node = []
    for node in alive_nodes():
        left = free.get(node.id, {})
        per_node.append(f"{node.name} has {left.get('GPU', 0):g} of {node.gpus} GPUs free")
    return f"a trial needs {asked} on one node; after {timeout_s:g} s {', '.join(per_node)}; others hold the rest"
