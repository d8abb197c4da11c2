// The runtime, embedded in a program: devices, workers, and everything that is set up before data flows.
//
//     #include <pollcore/runtime.hpp>
//
//     // Sends 64 bytes to whoever listens at an address, and says what became of it.
//     pollcore::Status send_to(const char* address) {
//         pollcore::Runtime runtime(pollcore::load_config("app.toml"));
//         pollcore::Session session = runtime.open_session();
//         pollcore::MemoryRegion memory = runtime.allocate(1 << 20, pollcore::Access::local());
//         pollcore::QueuePair qp = runtime.create_queue_pair({.shares = {{.session = &session}}});
//         qp.connect(address);
//         const pollcore::Refusal refusal = session.try_submit({.sge = {memory.addr(), 64, memory.lkey()},
//                                                               .qp = qp.handle(),
//                                                               .opcode = pollcore::Opcode::send,
//                                                               .flags = pollcore::kSignaled,  // else a success has no
//                                                               completion .num_sge = 1});
//         pollcore::Completion completion;
//         while (refusal == pollcore::Refusal::none && session.poll({&completion, 1}) == 0) {
//         }
//         return completion.status;
//     }
//
// Thread safety, errors, ownership: see context.hpp. Calls are carried out one after the other by the runtime's control
// thread.
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

class POLLCORE_API Runtime : public Context {
public:
    /// Opens the devices and starts the workers. Throws ConfigError, and Error: EBUSY when another runtime of this
    /// user, or the machine's daemon, has the core of a worker, unless config.share_cores. The cores are given up by
    /// stop(). The first of a process starts EAL, with RUNTIME_DIRECTORY set meanwhile: other threads may read the
    /// environment then, not change it.
    explicit Runtime(const Config& config);
    /// On something else than this machine's threads, clock and memory, for who builds against pollcore's sources: its
    /// simulation does. Null is this machine.
    POLLCORE_INTERNAL Runtime(const Config& config, std::unique_ptr<Platform> platform);
    ~Runtime();
    Runtime(Runtime&&) noexcept;
    Runtime& operator=(Runtime&&) noexcept;

    /// Closes every queue pair and session with what is in flight, stops the workers, closes the devices.
    /// False when draining was cut short by the configuration's drain_timeout, which all queue pairs share: see
    /// QueuePair::close for the report. The destructor does it too. Waits for the control thread however long that
    /// takes.
    bool stop();

    [[nodiscard]] const Config& config() const noexcept;
    /// Kernel thread id of a worker, for /proc.
    [[nodiscard]] int worker_thread_id(std::size_t worker) const;
    /// Whether the workers and the control thread move. It waits for none of them: it answers while they hang, too.
    [[nodiscard]] Health health() const;
    /// Counts a hang that was seen there (ControlCounters::hangs). One thread.
    void count_hang() noexcept;
    /// The opened device, for programs that use plain verbs beside the runtime. Calls on it belong on one thread
    /// at a time.
    [[nodiscard]] Device& device(const std::string& name = "");

    /// By AttachServer.
    [[nodiscard]] POLLCORE_INTERNAL RuntimeState& state() const;

private:
    POLLCORE_INTERNAL explicit Runtime(std::shared_ptr<RuntimeState> state);

    RuntimeState* state_ = nullptr;  // Context owns it
};

}  // namespace pollcore
