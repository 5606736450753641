"""Kinds of simulated adversaries. To add one: write its module here, and add its line."""

from wardround.adversaries.a_little_is_enough import alie
from wardround.adversaries.adversary import Adversary, Setting, View
from wardround.adversaries.backdoor_columns import backdoor_columns
from wardround.adversaries.backdoor_patch import backdoor_patch
from wardround.adversaries.feature_shift import feature_shift
from wardround.adversaries.gaussian_noise import gaussian_noise
from wardround.adversaries.history_aware import history_aware
from wardround.adversaries.inner_product import inner_product
from wardround.adversaries.label_flip import label_flip
from wardround.adversaries.model_replacement import model_replacement
from wardround.adversaries.scaling import scaling
from wardround.adversaries.sign_flip import sign_flip
from wardround.core.settings import Factory

ADVERSARIES: dict[str, Factory] = {
    "label-flip": label_flip,
    "feature-shift": feature_shift,
    "backdoor-columns": backdoor_columns,
    "backdoor-patch": backdoor_patch,
    "sign-flip": sign_flip,
    "scaling": scaling,
    "gaussian-noise": gaussian_noise,
    "alie": alie,
    "inner-product": inner_product,
    "history-aware": history_aware,
    "model-replacement": model_replacement,
}

__all__ = ["ADVERSARIES", "Adversary", "Setting", "View"]
