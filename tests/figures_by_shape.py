"""Figures of arrays whose task follows from their shapes, for tests that try all kinds alike."""

import numpy as np

from wardround.tasks import Task, class_task, findings_task


def task_for(label: np.ndarray, score: np.ndarray) -> Task:
    if label.ndim == 2:
        return findings_task(label.shape[1])
    return class_task(2 if score.ndim == 1 else score.shape[1])


def metrics(label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = 0.5) -> dict[str, float]:
    return task_for(label, score).figures(label, score, threshold)


def grouped_metrics(
    group: np.ndarray, count: int, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = 0.5
) -> np.ndarray:
    return task_for(label, score).grouped_figures(group, count, label, score, threshold)
