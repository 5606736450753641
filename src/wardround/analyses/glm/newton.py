"""The way to the maximum of a likelihood, as data: where a model stands, and where it goes next.

Newton's steps with step-halving: a step is halved while the likelihood falls, or is no number. The way ends with the
step whose length, in standard errors, is below 1e-8: what a further step would change is of the order of its square.
"""

from dataclasses import dataclass, replace

import numpy as np

from wardround.core.errors import StudyError

SHORT = 1e-16  # squared length of the last step, in standard errors
SHORT_FIRTH = 1e-22  # of steps that shorten by a factor each time
MOST_ITERATIONS, MOST_HALVINGS = 100, 40
UNSTEADY = 1e-13  # relative fall of a likelihood that is only rounding


@dataclass(frozen=True, eq=False)
class Climb:
    """`columns` of the design are the model's; `point` is to be looked at next, `reached` was the last that was better.
    `hat` is set where Firth's correction needs the inverse information at `point`."""

    columns: tuple[int, ...]
    point: np.ndarray
    reached: np.ndarray | None = None
    log_likelihood: float = -np.inf
    step: np.ndarray | None = None
    size: float = 1.0
    iterations: int = 0
    halvings: int = 0
    done: bool = False
    firth: bool = False
    information: np.ndarray | None = None  # at `point`, while Firth's scores are asked for

    @property
    def needs_hat(self) -> bool:
        return self.firth and self.information is not None


def packed(matrix: np.ndarray) -> np.ndarray:
    """The upper half of a symmetric matrix."""
    return np.asarray(matrix[np.triu_indices(len(matrix))])


def unpacked(half: np.ndarray, size: int) -> np.ndarray:
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = half
    return matrix + np.triu(matrix, 1).T


def looked(climb: Climb, log_likelihood: float, score: np.ndarray, information: np.ndarray, scale: float) -> Climb:
    """With likelihood, score and information at `point`. `scale` is that of a Gaussian, which steps are measured in."""
    if climb.firth:
        sign, logarithm = np.linalg.slogdet(information)
        log_likelihood = log_likelihood + logarithm / 2 if sign > 0 else np.nan
    if worse(climb, log_likelihood):
        return halved(climb)
    if climb.firth:
        return replace(climb, information=information, log_likelihood=log_likelihood, reached=climb.point, halvings=0)
    return stepped(climb, log_likelihood, score, information, scale)


def worse(climb: Climb, log_likelihood: float) -> bool:
    if not np.isfinite(log_likelihood):
        return True
    return log_likelihood < climb.log_likelihood - UNSTEADY * max(1.0, abs(log_likelihood))


def halved(climb: Climb) -> Climb:
    if climb.reached is None or climb.step is None or climb.halvings >= MOST_HALVINGS:
        raise StudyError("formula", "no step improves the likelihood", "Look for extreme values in its columns.")
    size = climb.size / 2
    return replace(
        climb,
        point=climb.reached + size * climb.step,
        size=size,
        halvings=climb.halvings + 1,
        information=None,
    )


def stepped(climb: Climb, log_likelihood: float, score: np.ndarray, information: np.ndarray, scale: float) -> Climb:
    step = np.linalg.solve(information, score)
    length = float(step @ score) / scale
    if climb.iterations >= MOST_ITERATIONS:
        problem = f"the likelihood has no maximum that is found in {MOST_ITERATIONS} steps"
        raise StudyError("formula", problem, "Leave out terms that hardly any patient has.")
    return replace(
        climb,
        point=climb.point + step,
        reached=climb.point,
        log_likelihood=log_likelihood,
        step=step,
        size=1.0,
        iterations=climb.iterations + 1,
        halvings=0,
        done=length <= (SHORT_FIRTH if climb.firth else SHORT),
        information=None,
    )
