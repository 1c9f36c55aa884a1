"""A SparkSession whose workers run this interpreter, with `delaycluster.slots` registered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from delayrebalance.model import RebalanceError
from delayrebalance.user_name import name_user

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_PACKAGE = "openjdk-17-jre-headless"
OLDEST_JAVA = 17


class SparkMissing(RebalanceError):
    """Something that Spark needs is not installed; says what to install."""


def spark_session(
    master: str | None = None, *, name: str = "delaycluster-rebalance", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one. master: as Spark takes it; None: what spark-submit was given, else
    local[*].

    conf: more of Spark's settings; they win over those here. Raises SparkMissing.
    """
    require()
    from pyspark.sql import SparkSession

    from delayrebalance.forecast import source

    name_user()

    # Else the workers are whatever `python3` is on the path, without this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        source.PUSHDOWN: "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(conf or {}),
    }
    builder = SparkSession.builder.appName(name)
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # not started by spark-submit, which knows one
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **settings}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    source.register(spark)
    return spark


def require() -> None:
    """Raises SparkMissing where pyspark, its companions or Java are not there."""
    for package in ("pyspark", "pyarrow", "pandas"):
        try:
            __import__(package)
        except ImportError:
            raise SparkMissing(
                f"the rebalance job needs {package}, which is not installed: pip install 'delaycluster[spark]'"
            ) from None
    why = java_missing()
    if why:
        raise SparkMissing(why)


def java_missing() -> str:
    """Why Spark has no Java to run on, and what to do; "" when it has."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = f"Debian: apt-get install {JAVA_PACKAGE}"
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        return f"Spark needs Java {OLDEST_JAVA} or newer, and {where}. {advice}"
    try:
        ended = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Spark needs Java {OLDEST_JAVA} or newer, and {java} does not run: {error}. {advice}"
    words = ended.stderr.split('"')
    version = words[1] if len(words) > 1 else "of no known version"
    major = version.removeprefix("1.").split(".")[0].split("-")[0]
    if not major.isdigit() or int(major) < OLDEST_JAVA:
        return f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is {version}. {advice}"
    return ""
