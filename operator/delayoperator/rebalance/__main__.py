"""python -m delayoperator.rebalance: runs `delayrebalance`.

The operator and the job's image may be of different releases, so the command stays what it was.
"""

from runpy import run_module

if __name__ == "__main__":
    run_module("delayrebalance", run_name="__main__", alter_sys=True)
