"""A launch as it is printed: what is started, word for word, without what nobody must read."""

import shlex
from pathlib import Path

import pytest

from specsearch.launch import NO_PREFIX, LaunchPlan, Prefix, expand, is_secret, is_secret_flag, placeholders_of, shown

CONTAINER = Prefix(("docker", "run"), ("image",), hands_env=True, kept_back=frozenset({"TMPDIR"}))


def plan(*argv: str, prefix: Prefix = NO_PREFIX, unset: tuple[str, ...] = (), **env: str) -> LaunchPlan:
    return LaunchPlan(argv or ("serve",), env, Path("log"), "", prefix=prefix, unset=unset)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("HF_TOKEN", "hf_x"), ("HUGGING_FACE_HUB_TOKEN", "x"), ("OPENAI_API_KEY", "sk"), ("WANDB_API_KEY", "1")),
        *(("AWS_SECRET_ACCESS_KEY", "x"), ("PGPASSWORD", "x"), ("DB_PASSWORD_2", "x"), ("hf_token", "x")),
        *(("GOOGLE_APPLICATION_CREDENTIALS", "x"), ("HTTPS_PROXY", "http://me:pw@proxy:3128"), ("SGLANG_API_KEY", "x")),
    ],
)
def test_a_secret_is_known_by_its_name_or_by_a_password_in_its_value(name: str, value: str) -> None:
    assert is_secret(name, value)
    assert value not in plan(**{name: value}).shell().replace(name, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("NCCL_PROTO", "LL"), ("NCCL_IB_PKEY", "0"), ("SGLANG_USE_AITER_FP8_PER_TOKEN", "1"), ("KEYS_PER_ROW", "4")),
        *(("TOKENIZERS_PARALLELISM", "false"), ("HTTPS_PROXY", "http://proxy:3128"), ("HF_HOME", "/hf")),
        *(("SGLANG_LOG_DECODE_GRAPH_KEY", "1"), ("SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "4096")),
    ],
)
def test_what_decides_how_a_server_runs_is_no_secret(name: str, value: str) -> None:
    assert not is_secret(name, value)
    assert plan(**{name: value}).shell() == f"{name}={value} serve"


def test_flags_that_take_secrets_are_told_from_those_that_count_tokens() -> None:
    assert all(map(is_secret_flag, ("--api-key", "admin_api_key", "--ssl-keyfile-password", "--watermark-key")))
    assert not any(map(is_secret_flag, ("--max-total-tokens", "--tokenizer-path", "--ssl-keyfile", "--tp-size")))


def test_a_printed_line_names_secrets_and_a_shell_puts_them_in() -> None:
    words = ("serve", "--api-key", "sk-1", "--admin-api-key=sk-2", "--enable-metrics", "it's")
    line = plan(*words, HF_TOKEN="hf_x", NCCL_PROTO="LL").shell()
    assert line == (
        'HF_TOKEN="$HF_TOKEN" NCCL_PROTO=LL serve --api-key "$API_KEY" --admin-api-key="$ADMIN_API_KEY" '
        "--enable-metrics 'it'\"'\"'s'"
    )


def test_a_secret_that_is_written_into_a_prefix_is_not_printed_either() -> None:
    prefix = Prefix(("docker", "run", "-e", "HF_TOKEN=hf_x", "--env=MY_SECRET=pw", "-ePGPASSWORD=pw", "image"))
    assert plan(prefix=prefix).shell() == (
        'docker run -e HF_TOKEN="$HF_TOKEN" --env=MY_SECRET="$MY_SECRET" -ePGPASSWORD="$PGPASSWORD" image serve'
    )
    assert shown(prefix.words)[3] == "HF_TOKEN=$HF_TOKEN"


def test_a_flag_without_its_secret_hides_nothing_behind_it() -> None:
    assert shown(["serve", "--api-key", "--port", "1"]) == ["serve", "--api-key", "--port", "1"]


def test_a_container_is_handed_the_variables_of_the_plan_and_its_client_only_what_it_passes_on() -> None:
    launch = plan(prefix=CONTAINER, unset=("NCCL_ALGO",), NCCL_PROTO="LL", HF_TOKEN="hf_x", TMPDIR="/t", ODD="a b")
    assert launch.command() == (
        *("docker", "run", "-e", "HF_TOKEN", "-e", "NCCL_PROTO=LL", "-e", "ODD=a b", "image"),
        *("env", "-u", "NCCL_ALGO", "serve"),
    )
    assert launch.environment({"PATH": "/bin", "NCCL_PROTO": "Simple"}) == {"PATH": "/bin", "HF_TOKEN": "hf_x"}
    first, *words = shlex.split(launch.shell())
    assert (first, tuple(words)) == ("HF_TOKEN=$HF_TOKEN", launch.command())


def test_marks_of_a_launch_go_into_the_container_and_not_into_the_printed_line() -> None:
    launch = plan(prefix=CONTAINER)
    assert launch.command({"SPECSEARCH_LAUNCH": "x"})[2:4] == ("-e", "SPECSEARCH_LAUNCH=x")
    assert "SPECSEARCH" not in launch.shell()


def test_words_before_a_command_change_nothing_in_its_environment() -> None:
    launch = plan(prefix=Prefix(("srun", "--gpus=8")), unset=("NCCL_ALGO",), NCCL_PROTO="LL")
    assert launch.shell() == "env -u NCCL_ALGO NCCL_PROTO=LL srun --gpus=8 serve"
    assert launch.environment({"NCCL_ALGO": "Ring"}) == {"NCCL_PROTO": "LL"}


@pytest.mark.parametrize(
    ("word", "expanded"),
    [
        ("{name}", "c"),
        ("--name={name}-{gpus}", "--name=c-0,1"),
        ('"device={gpus}"', '"device=0,1"'),
        ("{{name}}", "{name}"),
        ('{{"a": {{}}}}', '{"a": {}}'),
        ("{{{name}}}", "{c}"),
        ("plain", "plain"),
    ],
)
def test_placeholders_are_filled_in_and_double_braces_are_single_ones(word: str, expanded: str) -> None:
    assert expand(word, {"name": "c", "gpus": "0,1"}) == expanded


@pytest.mark.parametrize("word", ["{", "a}b", "{name", "{a{b}}", "}{"])
def test_a_brace_without_its_partner_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"a single [{}]; a literal brace is written"):
        placeholders_of([word])
