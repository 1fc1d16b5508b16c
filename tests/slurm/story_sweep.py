"""Leases that no job has are given back, and those of jobs that live never are."""
import kit


def tell(record, world):
    record.part("sweep gives back what no job has, and nothing else", sweeps, world)
    record.part("slurmctld sweeps by itself", by_itself, world)
    record.part("a job outlives slurmctld, and sweep that does not reach it gives nothing back", blind, world)


def orphan(world, job):
    """A lease as `claim` makes it, for a job that Slurm does not know."""
    made = world.pool.ask("lease", "create", "--note", f"slurm/stories/{job} uid 5", "--ttl", "1h", "--tenant", "slurm", "-o", "json")
    kit.hold(made.returncode == 0, "no lease:", made.stderr)


def sweep(world, *options, environment=None):
    slurm = world.slurm
    words = [kit.dxpu, "slurm", "sweep", "--credential", str(slurm.node_credential), "--cluster", "stories", *options]
    return kit.run_plainly(words, slurm.environment | (environment or {}), 60)


def sweeps(world):
    job = world.slurm.submit(world.script(30))
    world.until_running(job)
    orphan(world, 99998)
    foreign = world.pool.ask("lease", "create", "--note", "slurm/other/99997 uid 5", "--ttl", "1h", "--tenant", "slurm")
    kit.hold(foreign.returncode == 0, "no lease:", foreign.stderr)
    result = sweep(world)
    kit.hold(result.returncode == 0, "sweep failed:", result.stderr)
    leases = world.leases()
    kit.hold(99998 not in leases, "an orphan is left:", result.stdout, result.stderr)
    kit.hold(job in leases and 99997 in leases, "sweep took what lives, or what is of another cluster:", result.stdout)
    world.pool.ask("lease", "release", leases[99997][0]["id"])
    world.until_state(job, "COMPLETED")
    world.until_returned(job)


def by_itself(world):
    orphan(world, 99996)
    world.until_returned(99996, seconds=120)


def blind(world):
    job = world.slurm.submit(world.script(15))
    world.until_running(job)
    world.slurm.end("slurmctld")
    result = sweep(world)
    kit.hold("nothing is given back" in result.stderr, "it did not say that it knows nothing:", result.stdout, result.stderr)
    kit.hold(job in world.leases(), "a job that runs lost its lease")
    world.slurm.start_controller()
    world.until_state(job, "COMPLETED")
    world.until_returned(job)
    kit.hold([end for number, *_, end in world.told() if number == job][-1], "the job was disturbed:", world.slurm.said(job))
