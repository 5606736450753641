"""MONAI's networks, imported only when a study asks for one: it takes seconds and is an extra."""

from types import ModuleType

from wardround.errors import MachineError


def monai_nets(kind: str) -> ModuleType:
    try:
        from monai.networks import nets
    except ImportError:
        remedy = "Install it with `pip install 'wardround[imaging]'`."
        raise MachineError(f"model: {kind}", "needs the package monai", remedy) from None
    return nets
