import struct

from plmctl.reporting.drawing import write_png_files
from plmctl.reporting.plots import plots_of
from plmctl.reporting.run_files import read_runs
from tests.reporting import made


def size(path):
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", header[16:24])


def test_every_plot_of_the_report_is_a_file(tmp_path):
    folders = [made.pretrain(tmp_path / "bert", steps=400), made.finetune(tmp_path / "era")]
    written = write_png_files(folders, tmp_path / "plots", dpi=50)
    runs = read_runs(folders)
    keys = [f"{run.kind}-{plot.key}.png" for run in runs for plot in plots_of([run])]
    assert [path.name for path in written] == keys
    assert size(tmp_path / "plots" / "finetune-loss.png") == (450, 180)
    assert size(tmp_path / "plots" / "pretrain-accuracy.png") == (300, 180)


def test_something_is_drawn(tmp_path):
    from matplotlib.image import imread

    (path, *_) = write_png_files([made.finetune(tmp_path / "era")], tmp_path, dpi=50)
    pixels = imread(path)[..., :3]
    blue = abs(pixels - [0, 114 / 255, 178 / 255]).max(axis=-1) < 0.05
    assert 100 < blue.sum() < 0.1 * blue.size
