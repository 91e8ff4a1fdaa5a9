"""What there is: tasks and layers."""

__all__ = ["layers", "tasks"]


def tasks() -> int:
    """What there is to learn, one line each."""
    from statetrack import tasks as known

    for name, summary in known.available().items():
        print(f"{name:32}{summary}")
    print("and any group (a5_x_z2), regular expression (regex:(a|b)*ab) or machine (machine:NAME)")
    return 0


def layers() -> int:
    """The layers a model may be built from, one line each."""
    from statetrack.layers.registry import LAYERS

    for name, layer in LAYERS.items():
        first = (layer.__doc__ or "").strip().partition("\n")[0]
        print(f"{name:16}{first}".rstrip())
    return 0
