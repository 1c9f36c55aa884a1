"""An executor of the rebalance job in a pod of its own: what Spark's image does with the argument `executor`.

Spark (spark.master k8s://...) makes the pod and says the rest in its environment. pyspark of PyPI has the jars and not
that image's script, so this is it: java with Spark's classes, in this interpreter's place.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from delayrebalance.user_name import name_user

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def command(environment: Mapping[str, str], jars: str, java: str = "java") -> list[str]:
    """The executor's command line. Raises KeyError for what Spark did not say: this is no executor's pod."""
    numbered = ((re.fullmatch(r"SPARK_JAVA_OPT_(\d+)", name), value) for name, value in environment.items())
    options = [value for _, value in sorted((int(found[1]), value) for found, value in numbered if found)]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    paths = [environment.get("SPARK_CONF_DIR"), environment.get("SPARK_CLASSPATH"), f"{jars}/*"]
    return [
        java,
        *options,
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(path for path in paths if path),
        BACKEND,
        *(word for name, variable in _ARGUMENTS.items() for word in (name, environment[variable])),
    ]


def main() -> None:
    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java") or "java"
    try:
        argv = command(os.environ, str(Path(pyspark.__file__).parent / "jars"), java)
    except KeyError as error:
        sys.exit(f"executor: {error} is not set: only Spark starts this, in the pods that it makes")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    name_user()
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main()
