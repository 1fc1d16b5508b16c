-- Beside slurm.conf: gives jobs GPUs of a dxpu pool. slurmctld calls these functions as SlurmUser; each calls `dxpu slurm`.
--
--   submitted: job_process (checks the words)        cancelled, done, requeued: job_teardown (gives back)
--   staged:    setup (asks the pool) -> data_in (waits for the GPUs)
--   starts:    paths -> pre_run (checks that the GPUs are still there)
--   always:    pools, every 30 s (renews leases, gives back those that no job has)

-- The only lines to change. The credential is that of a tenant for this cluster alone; SlurmUser owns the file, mode 600.
local DXPU = "/usr/bin/dxpu"
local OPTIONS = "--credential /etc/dxpu/slurm.json"
-- One line for each job with its GPU seconds; SlurmUser must be able to write there. "" keeps none.
local USAGE_FILE = "/var/log/slurm/dxpu-usage"

-- A word as the shell takes it.
local function quoted(text)
    return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

-- Runs a command; gives whether it went well, and what it said.
local function run(...)
    local words = { quoted(DXPU), "slurm" }
    for _, word in ipairs({ ... }) do
        words[#words + 1] = word
    end
    -- Lua 5.1 does not tell how a pipe's program ended, so the shell prints it last.
    local pipe = io.popen(table.concat(words, " ") .. " 2>&1; echo $?")
    if not pipe then
        return false, "dxpu cannot be started"
    end
    local said = pipe:read("*a") or ""
    pipe:close()
    local text, code = said:match("^(.-)\n?(%d+)\n$")
    return code == "0", text or said
end

local function result(action, job, went_well, said)
    if went_well then
        return slurm.SUCCESS, said
    end
    slurm.log_error("dxpu: %s of job %s failed: %s", action, tostring(job), said)
    return slurm.ERROR, said
end

local function usage()
    return USAGE_FILE ~= "" and "--usage-file " .. quoted(USAGE_FILE) or ""
end

function slurm_bb_job_process(script)
    -- slurmctld waits for this one, so it asks nobody.
    local went_well, said = run("check", quoted(script))
    if went_well then
        return slurm.SUCCESS
    end
    return slurm.ERROR, said
end

function slurm_bb_setup(job, uid, gid, pool, size, script)
    return result("claim", job, run("claim", OPTIONS, "--job", job, "--uid", uid, "--script", quoted(script)))
end

function slurm_bb_data_in(job, script)
    return result("wait", job, run("claim --wait", OPTIONS, "--job", job, "--script", quoted(script)))
end

function slurm_bb_paths(job, script, file)
    -- slurmctld waits for this one, too. TaskProlog tells the rest on the node; this marks that there is something to tell.
    local out = io.open(file, "w")
    if not out then
        return slurm.ERROR
    end
    out:write("DXPU_LEASE_JOB=", tostring(job), "\n")
    out:close()
    return slurm.SUCCESS
end

function slurm_bb_pre_run(job, script)
    return result("start", job, run("start", OPTIONS, "--job", job))
end

function slurm_bb_post_run(job, script)
    return slurm.SUCCESS
end

function slurm_bb_data_out(job, script)
    return slurm.SUCCESS
end

function slurm_bb_job_teardown(job, script, hurry)
    return result("release", job, run("release", OPTIONS, usage(), "--job", job))
end

function slurm_bb_pools()
    -- Aside: it asks slurmctld, which may be waiting for this function while it starts.
    os.execute("setsid -f " .. quoted(DXPU) .. " slurm sweep " .. OPTIONS .. " " .. usage() .. " </dev/null >/dev/null 2>&1")
    return slurm.SUCCESS
end

function slurm_bb_real_size(job)
    return slurm.SUCCESS
end

function slurm_bb_get_status(...)
    local _, said = run("sweep --dry-run", OPTIONS)
    return slurm.SUCCESS, said
end
