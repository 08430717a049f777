"""A launch as a value: what would be started, printable and comparable before anything is."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# What Ray and Python tooling leave in a worker's environment and a server must not inherit:
# Ray forces OMP_NUM_THREADS=1, points PYTHONBREAKPOINT at its debugger, and so on.
INHERITED_AND_UNWANTED = (
    "OMP_NUM_THREADS",
    "PYTHONBREAKPOINT",
    "PL_DISABLE_FORK",
    "SPT_NOENV",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)
INHERITED_AND_UNWANTED_PREFIXES = ("RAY_", "TUNE_", "NCCL_", "SGLANG_", "SGL_", "SPECSEARCH_")

PLACEHOLDERS = ("env", "gpus", "name", "tmpdir")  # what may stand in braces in engine.command_prefix
_PIECE = re.compile(r"\{\{|\}\}|\{(?P<placeholder>[^{}]*)\}|[^{}]+|[{}]")

_SECRET = re.compile(r"(^|_)(API_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_|$)")
_MAYBE_SECRET = re.compile(r"(TOKEN|KEY|PASSWORD|AUTH)$")
# Their variables end so and hold none: SGLANG_USE_AITER_FP8_PER_TOKEN, NCCL_IB_PKEY.
_NEVER_SECRET = ("SGLANG_", "SGL_", "NCCL_")
_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")  # https://user:password@host
_ASSIGNMENT = re.compile(r"((?:--env=|-e)?([A-Za-z_]\w*)=)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The words before a server's own command, for one launch.

    A container inherits no variable: where it is handed them, they stand as `-e NAME=VALUE` between `words` and `rest`.
    """

    words: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    hands_env: bool = False
    kept_back: frozenset[str] = frozenset()  # variables that mean nothing inside


NO_PREFIX = Prefix()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that starting an engine needs; making one starts nothing.

    `argv` is the server's own command, `command` the whole of what is started. `env` holds only what the plan sets
    itself, `unset` what the server must not inherit; `environment` gives the whole.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_path: Path
    base_url: str
    unset: tuple[str, ...] = ()
    serve_argv: tuple[str, ...] = ()  # argv without what only the trial needs: its port, its token
    prefix: Prefix = NO_PREFIX
    serve_prefix: Prefix = NO_PREFIX  # without what only the trial needs: the name of its container
    stop_argv: tuple[str, ...] = ()  # ends the container of this launch, which may outlive its client

    def serve(self) -> str:
        """The line to serve with: the same configuration without what belongs to this trial and this host."""
        env = _without_own(self.env)
        return replace(self, argv=self.serve_argv or self.argv, env=env, prefix=self.serve_prefix).shell()

    def shell(self) -> str:
        """The line to paste in a terminal. Log, error and report print this one; a secret stands there as "$NAME"."""
        unset = () if self.prefix.hands_env else self.unset
        removals = ["env", *(f"-u {name}" for name in unset)] if unset else []
        assignments = [_assignment(name, value) for name, value in sorted(self._client_env().items())]
        return " ".join([*removals, *assignments, *_shell_words(self.command())])

    def command(self, marks: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Every word of what is started; `marks` are variables of the launch that the plan does not know."""
        prefix = self.prefix
        if not prefix.hands_env:
            return (*prefix.words, *self.argv)
        env = {**self.env, **(marks or {})}
        handed = [(name, env[name]) for name in sorted(env) if name not in prefix.kept_back]
        # Without a value the runtime takes it from its own environment, where no list of processes shows it.
        texts = [name if is_secret(name, value) else f"{name}={value}" for name, value in handed]
        words = [word for text in texts for word in ("-e", text)]
        removals = ["env", *(word for name in self.unset for word in ("-u", name))] if self.unset else []
        return (*prefix.words, *words, *prefix.rest, *removals, *self.argv)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of what is started: the inherited one, scrubbed, then the plan's own variables."""
        kept = {
            name: value
            for name, value in inherited.items()
            if name not in INHERITED_AND_UNWANTED
            and name not in self.unset
            and not name.startswith(INHERITED_AND_UNWANTED_PREFIXES)
        }
        return {**kept, **self._client_env()}

    def shown_env(self) -> dict[str, str]:
        """`env` for people to read: secrets as $NAME."""
        return {name: f"${name}" if is_secret(name, value) else value for name, value in self.env.items()}

    def _client_env(self) -> dict[str, str]:
        """What of `env` the started program itself has; the client of a container passes on secrets alone."""
        everything = not self.prefix.hands_env
        return {name: value for name, value in self.env.items() if everything or is_secret(name, value)}


def pieces(word: str) -> Iterator[tuple[str, str | None]]:
    """A word of a prefix as text and placeholders in turn; raises ValueError for a brace without its partner."""
    for piece in _PIECE.finditer(word):
        if piece["placeholder"] is not None:
            yield "", piece["placeholder"]
        elif piece[0] in "{}":
            raise ValueError(f"a single {piece[0]}; a literal brace is written {piece[0] * 2}")
        else:
            yield piece[0][0] if piece[0] in ("{{", "}}") else piece[0], None


def placeholders_of(words: Iterable[str]) -> list[str]:
    """The placeholders in the words, each as often as it stands there."""
    return [name for word in words for _, name in pieces(word) if name is not None]


def expand(word: str, values: Mapping[str, str]) -> str:
    """The word with its placeholders filled in."""
    return "".join(text if name is None else values[name] for text, name in pieces(word))


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable looks like one that nobody must read: HF_TOKEN, an API key, a password in an address."""
    upper = name.upper()
    maybe = _MAYBE_SECRET.search(upper) and not upper.startswith(_NEVER_SECRET)
    return bool(_SECRET.search(upper) or maybe or _LOGIN.search(value))


def is_secret_flag(name: str) -> bool:
    """Whether a server flag takes a secret, as --api-key does."""
    upper = name.lstrip("-").replace("-", "_").upper()
    return bool(_SECRET.search(upper)) or upper.endswith("_KEY")


def shown(words: Sequence[str]) -> list[str]:
    """Words for people to read: secrets as $NAME."""
    return [f"{text}${name}" if name else text for text, name in _without_secrets(words)]


def _shell_words(words: Sequence[str]) -> Iterator[str]:
    for text, name in _without_secrets(words):
        yield f'{shlex.quote(text) if text else ""}"${name}"' if name else shlex.quote(text)


def _without_secrets(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each word as its text and the name of the secret that it ends with, if any."""
    before = ""
    for word in words:
        flag, equals, _ = word.partition("=")
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned and is_secret(assigned[2], assigned[3]):
            yield assigned[1], assigned[2]
        elif flag.startswith("--") and equals and is_secret_flag(flag):
            yield f"{flag}=", _variable(flag)
        elif before.startswith("--") and "=" not in before and is_secret_flag(before) and not word.startswith("--"):
            yield "", _variable(before)
        else:
            yield word, None
        before = word


def _variable(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").upper()


def _assignment(name: str, value: str) -> str:
    return f'{name}="${name}"' if is_secret(name, value) else f"{name}={shlex.quote(value)}"


def _without_own(env: Mapping[str, str]) -> dict[str, str]:
    own = (
        *("CUDA_VISIBLE_DEVICES", "TMPDIR", "SPECSEARCH_SIMULATED_GPUS", "SPECSEARCH_SIMULATED_GPU_INDICES"),
        "SGLANG_RECORD_STEP_TIME",  # the list of step times grows for as long as the server lives
    )
    return {name: value for name, value in env.items() if name not in own}
