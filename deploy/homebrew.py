"""Writes a Homebrew formula for the wheels of a release, with their digests.

    python deploy/homebrew.py dist --url https://example.org/v0.1.0 > dist/outrider.rb

The formula installs the wheels into an environment of its own; what they depend on comes from PyPI.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

_PLATFORMS = {
    "macosx_11_0_arm64": "on_macos",
    "manylinux_2_28_x86_64": "on_linux_intel",
    "manylinux_2_28_aarch64": "on_linux_arm",
}
_FORMULA = """class Outrider < Formula
  include Language::Python::Virtualenv

  desc "Open language models, several times faster and unchanged"
  homepage "{home}"
  {main}
  license "Apache-2.0"

  depends_on "python@3.13"

{resources}
  def install
    virtualenv_create(libexec, "python3.13")
    wheels = resources.map {{ |each| each.cached_download.realpath }} << cached_download.realpath
    links = wheels.map do |path|
      name = path.basename.to_s.split("--").last
      cp path, buildpath/name
      buildpath/name
    end
    system "python3.13", "-m", "pip", "--python", libexec/"bin/python", "install", *links
    bin.install_symlink libexec/"bin/outrider"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/outrider --version")
  end
end
"""


def formula(wheels: Path, url: str) -> str:
    """The formula for the wheels in a folder, which are fetched below ``url``. Raises SystemExit if one is missing."""
    main = _one(wheels, "outrider-*-py3-none-any.whl")
    server = _one(wheels, "outrider_server-*-py3-none-any.whl")
    core = {where: _one(wheels, f"outrider_core-*-py3-none-{name}.whl") for name, where in _PLATFORMS.items()}
    mac, intel, arm = core["on_macos"], core["on_linux_intel"], core["on_linux_arm"]
    parts = [
        _resource("outrider-server", server, url, "  "),
        "  on_macos do\n    depends_on arch: :arm64\n" + _resource("outrider-core", mac, url, "    ") + "  end\n",
        "  on_linux do\n    on_intel do\n" + _resource("outrider-core", intel, url, "      ") + "    end\n",
        "    on_arm do\n" + _resource("outrider-core", arm, url, "      ") + "    end\n  end\n",
    ]
    stands = f'url "{url}/{main.name}", using: :nounzip\n  sha256 "{_digest(main)}"'
    return _FORMULA.format(home=url, main=stands, resources="\n".join(parts[:2]) + "\n" + "".join(parts[2:]))


def _resource(name: str, wheel: Path, url: str, indent: str) -> str:
    lines = (
        f'resource "{name}" do',
        f'  url "{url}/{wheel.name}", using: :nounzip',
        f'  sha256 "{_digest(wheel)}"',
        "end",
    )
    return "".join(f"{indent}{line}\n" for line in lines)


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{folder} has {len(found)} of {pattern}, not one: run `make wheels`")
    return found[0]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--url", required=True, help="the folder from which a user fetches the wheels")
    asked = parser.parse_args()
    print(formula(asked.wheels, asked.url.rstrip("/")), end="")


if __name__ == "__main__":
    main()
