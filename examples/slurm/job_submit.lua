-- SPDX-License-Identifier: Apache-2.0 OR MIT
-- Counts what a job asked by --prezero=SIZE against the generic resource `prezero` of its nodes, so that
-- Slurm queues jobs while others have the pages. In slurm.conf: JobSubmitPlugins=lua

local function asked(job)
    for _, word in pairs(job.spank_job_env or {}) do
        local size = string.match(word, "^S?P?A?N?K?_?PREZERO=(.*)$")
        if size then
            return size
        end
    end
end

function slurm_job_submit(job, partitions, uid)
    local size = asked(job)
    if not size then
        return slurm.SUCCESS
    end
    if not string.match(size, "^%d+[KMGT]?$") then
        slurm.log_user("--prezero=" .. size .. ": write a whole number and K, M, G or T")
        return slurm.ERROR
    end
    local counted = "gres:prezero:" .. size
    job.tres_per_node = job.tres_per_node and job.tres_per_node .. "," .. counted or counted
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
