"""Several runs of bench/gpu/share.py as one: a machine that is lent for minutes measures one load a run. Pure."""


class CannotJoin(ValueError):
    """The runs would not be comparable."""


def join(runs):
    """One result with the rows of all. Shares *of alone* stay those of each row's own run."""
    first, *others = runs
    for run in others:
        for name in ("commit", "gpu"):
            if run["about"][name] != first["about"][name]:
                raise CannotJoin(f"one run is of {name} {first['about'][name]}, another of {run['about'][name]}")
        if run["options"]["seconds"] != first["options"]["seconds"]:
            raise CannotJoin("the rows of one run take longer than those of another")
    sides = dict.fromkeys(side for run in runs for side in run["options"]["sides"])
    return {
        "about": first["about"],
        "options": first["options"] | {"sides": list(sides)},
        "service_us": {name: us for run in reversed(runs) for name, us in run["service_us"].items()},
        "rows": [row for run in runs for row in run["rows"]],
        "left_out": [row for run in runs for row in run["left_out"]],
        "runs": [{"date": run["about"]["date"], "service_us": run["service_us"]} for run in runs],
    }
