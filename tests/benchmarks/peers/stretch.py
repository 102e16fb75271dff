"""How long a worker took for its tasks, from the first one's start to when all are kept as done."""

import json
import time


class Stretch:
    """Told of each task that runs; tells the seconds and the CPU at the end, as JSON."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.done = 0
        self._began = self._cpu = 0.0

    def count(self) -> bool:
        """One more runs. True for the last one."""
        if not self.done:
            self._began, self._cpu = time.perf_counter(), time.process_time()
        self.done += 1
        return self.done == self.jobs

    def tell(self) -> None:
        """All are kept as done, now."""
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        assert self.done == self.jobs, (self.done, self.jobs)
        print(json.dumps({"seconds": seconds, "cpu_us": cpu / self.jobs * 1e6}))
