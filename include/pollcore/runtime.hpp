// The runtime, embedded in a program: devices, workers, and the calls that set up everything before data flows.
//
//     #include <pollcore/runtime.hpp>
//
//     // Sends 64 bytes to the listener at an address, and returns the status of the send.
//     pollcore::Status send_to(const char* address) {
//         pollcore::Runtime runtime(pollcore::load_config("app.toml"));
//         pollcore::Session session = runtime.open_session();
//         pollcore::MemoryRegion memory = runtime.allocate(1 << 20, pollcore::Access::local());
//         pollcore::QueuePair qp = runtime.create_queue_pair({.shares = {{.session = &session}}});
//         qp.connect(address);
//         const pollcore::Refusal refusal =
//             session.try_submit(pollcore::WorkRequest::send(qp.handle(), memory.sge(0, 64)));
//         pollcore::Completion completion;
//         while (refusal == pollcore::Refusal::none && session.poll({&completion, 1}) == 0) {
//         }
//         return completion.status;
//     }
//
// Thread safety, errors, ownership: see context.hpp. The runtime's control thread carries out the calls one after the
// other (D32).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "pollcore/config.hpp"
#include "pollcore/context.hpp"
#include "pollcore/export.h"
#include "pollcore/health.hpp"

namespace pollcore {

class AttachServer;
class Device;
class Platform;
class RuntimeState;

/// A Context whose workers and devices are in this process. Move-only.
class POLLCORE_API Runtime : public Context {
public:
    /// Opens the devices and starts the workers. Throws ConfigError or Error. Throws Error(EBUSY) when another runtime
    /// of this user, or the machine's daemon, has the core of a worker and config.share_cores is not set (D31). stop()
    /// frees the cores. The first Runtime of a process starts EAL. During that start, this call sets the environment
    /// variable RUNTIME_DIRECTORY, so other threads may read the environment, but must not change it.
    explicit Runtime(const Config& config);
    /// Uses `platform` in place of this machine's threads, clock and memory (D30), as the simulation does. For programs
    /// built against pollcore's sources. A null pointer means this machine.
    POLLCORE_INTERNAL Runtime(const Config& config, std::unique_ptr<Platform> platform);
    ~Runtime();
    Runtime(Runtime&&) noexcept;
    Runtime& operator=(Runtime&&) noexcept;

    /// Closes every queue pair and session, so that every request in flight completes. Then stops the workers and
    /// closes the devices. Returns false if requests were still in flight when the configuration's drain_timeout was
    /// over. All queue pairs together have this time. QueuePair::close says where such requests are counted. This call
    /// waits for the control thread without a limit. The destructor does the same as this call.
    bool stop();

    [[nodiscard]] const Config& config() const noexcept;
    /// Kernel thread id of a worker, for /proc.
    [[nodiscard]] int worker_thread_id(std::size_t worker) const;
    /// Keeps the calling thread off the cores of this runtime's workers: from now on the kernel does not run the thread
    /// there. Threads that it starts later inherit this. A thread that shares a core with a worker that spins gets half
    /// of that core, and the worker is stopped for milliseconds at a time. Throws Error(EINVAL), and changes nothing,
    /// if the thread would have no CPU left.
    void keep_off_workers() const;
    /// Tells whether the workers and the control thread make progress. This call waits for none of these threads, so it
    /// returns even while they hang (D33).
    [[nodiscard]] Health health() const;
    /// Counts a hang that health() has shown (ControlCounters::hangs). Only one thread may call this.
    void count_hang() noexcept;
    /// The opened device, for programs that use plain verbs beside the runtime. Only one thread at a time may make this
    /// call.
    [[nodiscard]] Device& device(const std::string& name = "");

    /// For AttachServer.
    [[nodiscard]] POLLCORE_INTERNAL RuntimeState& state() const;

private:
    POLLCORE_INTERNAL explicit Runtime(std::shared_ptr<RuntimeState> state);

    RuntimeState* state_ = nullptr;  // Context owns it
};

}  // namespace pollcore
