"""One contender on one work, in a process of its own: `python -m benchmarks.one CONTENDER DATA MOST_ROUNDS`."""

import json
import sys
from pathlib import Path

from benchmarks import loops, ours
from benchmarks.work import peak_megabytes, read_data


def main() -> None:
    contender, path, most = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    work, parts, x_test, y_test = read_data(path)
    runner = loops.run if contender in ("plain", "tight") else ours.run
    figures = runner(contender, work, parts, x_test, y_test, most)
    figures["megabytes"] = peak_megabytes()
    sys.stdout.write("RESULT " + json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
