#include "control/held_core.hpp"

#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "control/daemon_lock.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

void refuse_core_of_daemon(const WorkerConfig& worker, const std::filesystem::path& of_daemon, const CoreLock& own) {
    const std::optional<DaemonLock> held = find_daemon_lock(of_daemon, worker.core);
    std::error_code not_there;
    if (held && !std::filesystem::equivalent(held->file, own.file(), not_there)) {
        throw Error(EBUSY,
                    fmt::format("locking core {} for worker \"{}\": {} is locked by process {} of user {}, whose the "
                                "machine's daemon is; choose another core, or share this one (runtime.share_cores)",
                                worker.core, worker.name, held->file.native(), held->process, held->user));
    }
}

std::optional<CoreClaim> claim_core(const WorkerConfig& worker) {
    try {
        CoreClaim claim(worker.core);
        if (const std::string others = claim.others(); !others.empty()) {
            log_warning("core {} of worker \"{}\" is polled by {}, too: both get a part of it only", worker.core,
                        worker.name, others);
        }
        return claim;
    } catch (const Error& error) {
        log_warning("worker \"{}\": {}", worker.name, error.what());
        return std::nullopt;
    }
}

}  // namespace

std::map<std::uint32_t, HeldCore> hold_cores(const Config& config, const std::filesystem::path& of_daemon) {
    std::map<std::uint32_t, HeldCore> held;
    if (config.share_cores) {
        return held;
    }
    const LockDirectory directory = config.lock_directory.empty() ? LockDirectory(usual_lock_directories(::geteuid()))
                                                                  : LockDirectory(config.lock_directory);
    for (const WorkerConfig& worker : config.workers) {
        CoreLock lock(directory, worker.core, worker.name);
        if (lock.file().parent_path() != of_daemon) {  // else this process has itself taken the daemon's lock
            refuse_core_of_daemon(worker, of_daemon, lock);
        }
        held.emplace(worker.core, HeldCore{.lock = std::move(lock), .claim = claim_core(worker)});
    }
    return held;
}

}  // namespace pollcore
