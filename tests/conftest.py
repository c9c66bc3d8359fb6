"""Which process runs which tests, in which order."""

from pathlib import Path

import pytest
from hidden_room import HIDDEN_ROOMS
from xdist.scheduler import LoadScopeScheduling

# The tests of a hidden room, beside those in folders of its name.
OTHERS = {"models": ["unit/export/test_engines.py"]}
collect_ignore = ["integration/test_tensorflow_serving.py"] if HIDDEN_ROOMS else []
for room in HIDDEN_ROOMS:
    collect_ignore += [f"unit/{room}", f"unit/trainers/{room}", f"integration/test_{room}.py"]
    collect_ignore += OTHERS.get(room, [])
# These files share an export and its graphs, so one process runs them.
OF_THE_EXPORT = ("test_check", "test_saved_model", "test_served_graph", "test_fuzz")
OF_THE_EXPORT += ("test_serving_contract", "test_cli", "test_cli_translate", "test_session")
OF_THE_EXPORT += ("test_kinds", "test_tensorflow_serving", "test_languages", "test_protection")
# Slow files.
FIRST = ("test_multiworker", "test_resuming", "test_training_model", "test_training")
FIRST += OF_THE_EXPORT


class ByFile(LoadScopeScheduling):
    """Gives all tests of a file to one process; xdist's groups need an earlier pytest than 9.2."""

    def _split_scope(self, nodeid):
        path = nodeid.split("::")[0]
        return "export" if Path(path).stem in OF_THE_EXPORT else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # the order is that of the collection
    return ByFile(config, log)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in FIRST)


def pytest_configure(config):
    # A process that only distributes the tests need not import TensorFlow.
    if hasattr(config, "workerinput") or not config.option.numprocesses:
        config.pluginmanager.import_plugin("shared_fixtures")
