"""The distributed engine: messages between coordinator and sites, carried by Flower. Only this package imports it."""

import os

from wardround.core.extras import installed, missing_extra

FLOWER = "1.41.0"
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # what a slow link must carry between two signs of life; more and smaller chunks cost 30 ms each at the three ends
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(16 * 2**20),
}


def check_version() -> None:
    """Refused at once: `adapter.py` uses interfaces that may change with any version."""
    version = installed("flwr")
    if version != FLOWER:
        reason = f"Flower {version} is installed, and this version of wardround knows {FLOWER}"
        raise missing_extra("deploy", "a study across hospitals", reason if version else "Flower is not installed")


check_version()
os.environ.update(SETTINGS)  # now, because Flower reads them when it is imported
