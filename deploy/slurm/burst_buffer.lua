-- Beside slurm.conf: gives jobs GPUs of a dxpu pool. slurmctld calls these functions as SlurmUser; each calls `dxpu slurm`.
--
--   submitted: job_process (checks the words)        cancelled, done, requeued: job_teardown (gives back)
--   staged:    setup (asks the pool) -> data_in (waits some seconds for the GPUs)
--   no GPUs:   data_in fails, Slurm holds the job; a watcher waits for the GPUs and releases the job: staged again
--   starts:    paths -> pre_run (checks that the GPUs are still there)
--   always:    pools, every 30 s (renews leases, gives back those that no job has, starts watchers that are missing,
--              queues jobs again that Slurm forgot while it staged them or tore them down)
--
-- No function may wait for long. slurmscriptd's children inherit pipes of other calls that begin at the same moment, and a call is over
-- for slurmscriptd only when every copy of its pipe is closed: a job that waits would keep another from starting whose GPUs it
-- waits for. And in an array Slurm looks at no task behind one that is still staged.

-- The only lines to change. The credential is that of a tenant for this cluster alone; SlurmUser owns the file, mode 600.
local DXPU = "/usr/bin/dxpu"
local OPTIONS = "--credential /etc/dxpu/slurm.json"
-- One line for each job with its GPU seconds; SlurmUser must be able to write there. "" keeps none.
local USAGE_FILE = "/var/log/slurm/dxpu-usage"

-- How long a job is staged before it is held, in seconds.
local STAGED_FOR = 5
-- How long a job that could run stays in one state of its burst buffer, with no call for it, until it counts as forgotten, in seconds.
local FORGOTTEN_AFTER = 55
-- What Slurm shows as the reason of a job that waits.
local WAITS = "the job waits for GPUs of the pool"

-- A word as the shell takes it.
local function quoted(text)
    return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

-- Runs a command for at most so many seconds; gives whether it went well, what it said, and its exit code (124: it took longer).
local function run_for(seconds, ...)
    local words = { "timeout", seconds, quoted(DXPU), "slurm" }
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
    return code == "0", text or said, code
end

local function run(...)
    -- burst_buffer.conf bounds it.
    return run_for(0, ...)
end

-- slurmctld misses the end of a call that ends before its thread has begun to wait for it, and waits for ever then.
local function linger()
    os.execute("sleep 0.1")
end

-- A call for the job: Slurm has not forgotten it. MENDER makes the file.
local function is_known(script)
    os.remove((tostring(script):gsub("[^/]*$", "dxpu-stuck")))
end

-- While this file is beside a job's script, the job keeps its lease when Slurm tears it down: it waits.
local function mark(script)
    return (tostring(script):gsub("[^/]*$", "dxpu-waits"))
end

local function is_marked(script)
    local file = io.open(mark(script))
    if file then
        file:close()
    end
    return file ~= nil
end

-- Waits for the GPUs of a job that is held, then releases it. One watcher for each job, by a lock on its mark. It closes what it has
-- inherited, for the reason above; bash, because dash knows no descriptor above 9.
local WATCHER = [[
for fd in /proc/$BASHPID/fd/*; do fd=${fd##*/}; [ "$fd" -gt 2 ] && eval "exec $fd>&-"; done
exec 9<"$4" || exit 0
flock -n 9 || exit 0
"$1" slurm claim --wait $2 --job "$3" --script "${4%/*}/script" 9<&- || true
while sleep 1 && [ -e "$4" ]; do
    all=$(timeout 20 squeue -h --all --array --states=PENDING -o "%A %F %K %Q %r") || continue
    line=$(grep "^$3 " <<< "$all") || { rm -f "$4"; exit 0; }
    read -r _ array index priority reason <<< "$line"
    [ "$priority" = 0 ] || continue
    [ "$index" = N/A ] && name=$3 || name=${array}_$index
    # Its user holds it: then its user releases it. Slurm shows another hold as JobHeldAdmin or by what data_in said.
    [ "$reason" != JobHeldUser ] || exit 0
    timeout 20 scontrol release "$name" && exit 0
done
]]

-- Starts a watcher for every job that waits and has none: slurmctld or this machine was restarted. Then mends.
local WATCHERS = [[
state=$(timeout 20 scontrol show config | sed -n 's/^StateSaveLocation *= //p')
timeout 20 squeue -h --all --array --states=PENDING -o "%A %Q" | while read -r job priority; do
    mark=$state/hash.$((job % 10))/job.$job/dxpu-waits
    if [ "$priority" = 0 ] && [ -e "$mark" ]; then
        setsid -f bash -c "$1" dxpu-slurm-watcher "$2" "$3" "$job" "$mark"
    fi
done
exec bash -c "$4" dxpu-slurm-mender "$state" "$5"
]]

-- Queues jobs again that Slurm forgot. slurmctld 22.05 loses its thread for a job, but not the state of the job's burst buffer, if it
-- is killed, if slurmscriptd crashes while slurmctld ends with many calls under way, or if a job is requeued by its node. Such a
-- job waits for ever and may hold GPUs; `scancel --hurry` alone begins a new teardown. Then the job is requeued. The file dxpu-requeue
-- beside its script remembers that, for the next look, should this one be killed in between. Every call for a job deletes its
-- dxpu-stuck: a job that is staged again and again is not taken for one that stays in its state.
local MENDER = [[
exec 9>>"$1/dxpu-mend.lock" && flock -n 9 || exit 0
now=$(date +%s)
busy=" $(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ') "
fields=JobID:12,JobArrayID:40,BurstBufferState:16,PriorityLong:14,RestartCnt:8,BatchFlag:6,Requeue:6
timeout 20 squeue -h --all --array --states=PENDING -O "$fields" | while read -r job name state priority restarts batch requeue; do
    folder=$1/hash.$((job % 10))/job.$job
    case $state in staging-in|pre-run|alloc-revoke|running|suspended|post-run|staging-out|staged-out|teardown*) ;; *) continue ;; esac
    [ "$priority" != 0 ] && [ -d "$folder" ] || continue
    if [ "$(cat "$folder/dxpu-stuck" 2>/dev/null)" != "$state $restarts" ]; then
        echo "$state $restarts" > "$folder/dxpu-stuck"
        continue
    fi
    [ $((now - $(stat -c %Y "$folder/dxpu-stuck"))) -ge "$2" ] || continue
    case $busy in *" --job $job "*) continue ;; esac
    if [ "$batch" != 1 ]; then
        logger -t dxpu-slurm "job $name is forgotten by Slurm in $state: cancel it, and submit it again"
        continue
    fi
    # A job that is held does not start while it is looked at again: one that is cancelled while it starts would never be cleaned up.
    timeout 20 scontrol hold "$name"
    again=$(timeout 20 squeue -h --all --array --states=PENDING -j "$job" -O BurstBufferState:16)
    if [ ! -e "$folder/dxpu-stuck" ] || [ "${again%% *}" != "$state" ]; then
        timeout 20 scontrol release "$name"
        continue
    fi
    logger -t dxpu-slurm "job $name is forgotten by Slurm in $state: it is queued again"
    rm -f "$folder/dxpu-stuck" "$folder/dxpu-waits"
    echo "$name $requeue" > "$folder/dxpu-requeue"
    [ "$requeue" = 1 ] || timeout 20 scontrol update "JobId=$name" Requeue=1
    timeout 20 scancel --hurry "$name"
done
# Slurm requeues a job whose pre_run failed, and does not look at it again before it is released. After some failures it holds it.
timeout 20 squeue -h --all --array --states=PENDING -o "%A %F %K %Q %r" | while read -r job array index priority reason; do
    [ "$priority" != 0 ] && [ "$reason" = "Burst buffer pre_run error" ] || continue
    [ "$index" = N/A ] && name=$job || name=${array}_$index
    timeout 20 scontrol release "$name"
done
for try in 1 2 3 4 5 6 7 8 9 10; do
    left=
    for file in "$1"/hash.*/job.*/dxpu-requeue; do
        [ -e "$file" ] || continue
        left=1
        read -r name requeue < "$file"
        job=${file%/*}; job=${job##*.}
        state=$(timeout 20 squeue -h --all --array --states=all -j "$job" -O BurstBufferState:16) || continue
        case $state in *staging-in*|*-run*|*-out*|*running*|*teardown*) continue ;; esac
        timeout 20 scontrol requeue "$name" || logger -t dxpu-slurm "job $name cannot be queued again: submit it again"
        timeout 20 scontrol release "$name"
        [ "$requeue" = 1 ] || timeout 20 scontrol update "JobId=$name" Requeue=0
        rm -f "$file"
    done
    [ -n "$left" ] || exit 0
    sleep 1
done
]]

local function watch(job, script)
    local words = { "setsid -f bash -c", quoted(WATCHER), "dxpu-slurm-watcher", quoted(DXPU), quoted(OPTIONS), quoted(job), quoted(mark(script)) }
    os.execute(table.concat(words, " ") .. " </dev/null >/dev/null 2>&1")
end

local function result(action, job, went_well, said)
    if went_well then
        return slurm.SUCCESS, said
    end
    -- squeue shows it as the job's reason, which is one line.
    said = said:gsub("%s*\n%s*", "; ")
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
    is_known(script)
    if is_marked(script) then
        -- It waited, and it has its lease.
        linger()
        return slurm.SUCCESS
    end
    return result("claim", job, run("claim", OPTIONS, "--job", job, "--uid", uid, "--script", quoted(script)))
end

function slurm_bb_data_in(job, script)
    is_known(script)
    local went_well, said, code = run_for(STAGED_FOR, "claim --wait", OPTIONS, "--job", job, "--script", quoted(script))
    if not went_well and code == "124" then
        local file = io.open(mark(script), "w")
        if file then
            file:close()
            watch(job, script)
            return slurm.ERROR, WAITS
        end
    end
    os.remove(mark(script))
    return result("wait", job, went_well, said)
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
    is_known(script)
    return result("start", job, run("start", OPTIONS, "--job", job))
end

function slurm_bb_post_run(job, script)
    is_known(script)
    linger()
    return slurm.SUCCESS
end

function slurm_bb_data_out(job, script)
    linger()
    return slurm.SUCCESS
end

function slurm_bb_job_teardown(job, script, hurry)
    is_known(script)
    if is_marked(script) then
        -- It waits, or it was cancelled while it waited: then `sweep` gives its lease back.
        linger()
        return slurm.SUCCESS
    end
    return result("release", job, run("release", OPTIONS, usage(), "--job", job))
end

function slurm_bb_pools()
    -- Aside: it asks slurmctld, which may be waiting for this function while it starts.
    os.execute("setsid -f " .. quoted(DXPU) .. " slurm sweep " .. OPTIONS .. " " .. usage() .. " </dev/null >/dev/null 2>&1")
    local words = { "setsid -f bash -c", quoted(WATCHERS), "dxpu-slurm-watchers", quoted(WATCHER), quoted(DXPU), quoted(OPTIONS), quoted(MENDER), FORGOTTEN_AFTER }
    os.execute(table.concat(words, " ") .. " </dev/null >/dev/null 2>&1")
    return slurm.SUCCESS
end

function slurm_bb_real_size(job)
    return slurm.SUCCESS
end

function slurm_bb_get_status(...)
    local _, said = run("sweep --dry-run", OPTIONS)
    return slurm.SUCCESS, said
end
