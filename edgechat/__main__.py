"""The command line: what `edgechat` and `python -m edgechat` run."""


def main() -> None:
    """Run the command line."""
    from edgechat.cli.app import run

    run()


if __name__ == "__main__":
    main()
