"""cocotbext-pcie's root complex, which nobody here wrote, enumerates our switch and uses what is behind it."""

import os
import pathlib

from cocotb_tools import runner

from qemu import packages

HERE = pathlib.Path(__file__).resolve().parent


def test_a_foreign_root_complex_uses_our_switch(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{packages() / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("DXPU_SWITCH", str(pathlib.Path(os.environ["DXPU_PCIE_EXAMPLES"]) / "switch_stdio"))
    monkeypatch.syspath_prepend(HERE / "cocotb_model")
    simulator = runner.get_runner("icarus")
    simulator.build(sources=[HERE / "cocotb_model" / "nothing.v"], hdl_toplevel="nothing", build_dir=tmp_path / "build")
    results = simulator.test(
        test_module="root_complex", hdl_toplevel="nothing", build_dir=tmp_path / "build", test_dir=tmp_path,
        results_xml=str(tmp_path / "results.xml"))
    tests, failed = runner.get_results(results)
    assert (tests, failed) == (5, 0)
