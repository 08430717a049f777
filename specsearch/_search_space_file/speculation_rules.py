"""What the speculative knobs of a space must have in common, whatever the engine's version."""

from specsearch._search_space_file.document import Document
from specsearch._search_space_file.space import Known, speculative_values
from specsearch.search_space import ALGORITHM, is_speculative_knob

TRIPLE = ("num_steps", "eagle_topk", "num_draft_tokens")
# Algorithms that draft in steps of a tree; the server refuses a part of the triple without a word.
TREE_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
# Algorithms that no target carries the drafter of.
_NEED_A_DRAFTER = ("EAGLE3", "STANDALONE")


def check_speculation(document: Document, known: Known, *, drafter_needed: bool) -> None:
    """Note speculative knobs without an algorithm, a part of the triple, a drafter that is missing."""
    if ALGORITHM not in known.parameters:
        for name in sorted(filter(is_speculative_knob, known.parameters)):
            wanted = "speculative_algorithm: {type: choice, values: [none, EAGLE3]}"
            document.problem(known.places[name], f"speaks of speculation; give {wanted} as well")
        return
    if known.parameters[ALGORITHM] is None:
        return
    _check_conditions_of_the_triple(document, known)
    for algorithm in speculative_values(known):
        if algorithm in TREE_ALGORITHMS:
            _check_triple(document, known, algorithm)
        if (
            drafter_needed
            and algorithm in _NEED_A_DRAFTER
            and not _may_be_active(document, known, "draft_model", algorithm)
        ):
            place = known.places[ALGORITHM]
            document.problem(
                (*place, algorithm), f"{algorithm} needs a drafter; give draft_model", line=document.line(place)
            )


def _check_conditions_of_the_triple(document: Document, known: Known) -> None:
    for name in TRIPLE:
        parameter = known.parameters.get(name)
        others = sorted(parameter.when.keys() - {ALGORITHM}) if parameter else []
        if others:
            document.problem(
                (*known.places[name], "when"),
                f"{name} may depend on {ALGORITHM} only, not on {others[0]}: steps, top-k and draft tokens go to the "
                "server together (with eagle_topk 1 the draft tokens follow by themselves)",
            )


def _check_triple(document: Document, known: Known, algorithm: str) -> None:
    present = [name for name in TRIPLE if _may_be_active(document, known, name, algorithm)]
    missing = [name for name in TRIPLE if name not in present]
    if present and missing:
        document.problem(
            known.places[present[0]],
            f"{', '.join(missing)} missing: {algorithm} takes {', '.join(TRIPLE)} all together or none of them",
        )


def _may_be_active(document: Document, known: Known, name: str, algorithm: str) -> bool:
    if name not in known.parameters:
        return False
    if document.has_problem((*known.places[name], "when")):
        return True  # what it depends on is not known
    parameter = known.parameters[name]
    return parameter is None or ALGORITHM not in parameter.when or algorithm in parameter.when[ALGORITHM]
