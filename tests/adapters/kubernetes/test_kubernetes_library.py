"""How little of kubernetes-asyncio is imported, and that nobody else notices."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import sys
from holdfast.adapters.kubernetes import library
config, configuration, rest = library.load()
assert library.load() == (config, configuration, rest)
assert configuration() is not None and rest.__name__ == "RESTClientObject"
assert not [name for name in sys.modules if name.startswith("kubernetes_asyncio.client.models")]
assert len([name for name in sys.modules if name.startswith("kubernetes_asyncio")]) < 40
{more}
"""
WHOLE = """\
import kubernetes_asyncio
from kubernetes_asyncio import client, watch
from kubernetes_asyncio.client import ApiClient, V1Pod
assert client.CoreV1Api and watch.Watch and kubernetes_asyncio.__version__ and client.Configuration is configuration
assert issubclass(kubernetes_asyncio.stream.WsApiClient, ApiClient)
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_models_are_left_out():
    """What reads kubeconfigs and holds connections is there, none of the models is."""
    run(PROGRAM.format(more=""))


def test_whoever_wants_the_whole_library_gets_it():
    """Another user of it in the same process finds everything, and the same classes."""
    run(PROGRAM.format(more=WHOLE))


def test_a_library_that_is_there_already_is_taken_as_it_is():
    """Imported by somebody before, as a whole: nothing is put in its place."""
    run(
        "import kubernetes_asyncio\nfrom holdfast.adapters.kubernetes import library\n"
        "assert library.load()[1] is kubernetes_asyncio.client.Configuration\n"
    )


def test_where_it_is_absent_one_sentence_says_what_to_install():
    """So says everything that speaks to Kubernetes, the lab too: before it builds or starts anything."""
    run(
        "import importlib.util, pathlib\n"
        "from holdfast.adapters.kubernetes import library\n"
        "from holdfast.errors import UsageError\n"
        "from holdfast.lab.kube_lab import KubeLab, KubeLabSettings\n"
        "importlib.util.find_spec = lambda name: None\n"
        "for use in (library.load, lambda: KubeLab.start(KubeLabSettings(), pathlib.Path('/nonexistent/lab'))):\n"
        "    try:\n"
        "        use()\n"
        "    except UsageError as error:\n"
        "        assert \"pip install 'holdfast[kubernetes]'\" in str(error)\n"
        "    else:\n"
        "        raise AssertionError(use)\n"
    )
