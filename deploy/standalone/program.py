"""The program without a Python installation: it also is the interpreter of the processes that Outrider starts."""

import sys


def main() -> None:
    if sys.argv[1:2] == ["-c"]:  # as ``sys.executable -c CODE ARGUMENTS``
        code, sys.argv = sys.argv[2], ["-c", *sys.argv[3:]]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        return
    from outrider.cli.main import main as run

    run()


main()
