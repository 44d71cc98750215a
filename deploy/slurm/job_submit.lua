-- Checks at submission what a job demands of the clocks. In slurm.conf: JobSubmitPlugins=lua; beside it: job_submit.lua
--
-- A user writes `sbatch --comment=max-alignment=500ns`, and prolog_slurmctld.sh requires that. A demand that it could not read
-- would requeue the job for ever; here it is refused at once, in one line. This reads no file and asks no server, since
-- slurmctld serves no one else meanwhile. If you have a job_submit.lua, copy `problem` and `timesyncd_check` into it.

local UNITS = { ns = true, us = true, ms = true, s = true }

-- What is wrong with a job's comment, in one line; nil: nothing, also where it demands nothing.
local function problem(comment)
    local _, count = string.gsub(comment, "max%-alignment", "")
    if count == 0 then
        return nil
    end
    local span = string.match(comment, "max%-alignment=([0-9a-z.]*)")
    local whole, part, unit = string.match(span or "", "^(%d+)(%.?%d*)(%l+)$")
    if count > 1 or whole == nil or not UNITS[unit] or #whole > 9 or #part == 1 or #part > 10 then
        return "timesyncd: --comment='" .. comment .. "': write one max-alignment=SPAN, such as max-alignment=500ns, 1us or 2ms"
    end
    return nil
end

function timesyncd_check(job_desc)
    local why = problem(job_desc.comment or "")
    if why == nil then
        return slurm.SUCCESS
    end
    slurm.log_user("%s", why)
    return slurm.ERROR
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    return timesyncd_check(job_desc)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return timesyncd_check(job_desc)
end

return slurm.SUCCESS
