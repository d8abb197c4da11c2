// Opens what the paths of a process need: the device for plain verbs, a runtime, an attachment to a daemon. Each is
// opened when the first path needs it.
//
// Thread safety: one thread uses a Place. Several may share a runtime.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "place_options.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"
#include "pollperf/measure/path_run.hpp"
#include "pollperf/paths/path_setup.hpp"

namespace pollcore::perf {

/// The runtime of this process, with a socket for this process's own attachments. Any thread may call get().
class OwnRuntime {
public:
    [[nodiscard]] Runtime& get(const Config& config);
    /// The socket's path. get() must have been called.
    [[nodiscard]] std::string socket();

private:
    std::mutex mutex_;
    std::optional<Runtime> runtime_;
    AttachConfig attach_;
    std::optional<AttachServer> server_;
};

class Place {
public:
    Place(PlaceOptions options, std::shared_ptr<OwnRuntime> runtime);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    /// If the options name no GID, connections without rdma_cm use that of this address, if the device has it. Call it
    /// before anything is opened.
    void prefer_address(const std::string& address);

    /// The most bytes that a request on this path can carry inline. Throws UsageError if the options want more.
    [[nodiscard]] std::uint32_t inline_most(PathKind path);
    /// The port's MTU in bytes.
    [[nodiscard]] std::uint16_t port_mtu(PathKind path);
    /// Makes a path: one with `setup` for each of plan.cores. The Place must outlive it.
    [[nodiscard]] std::unique_ptr<PathRun> make(PathKind path, PathSetup setup, PathPlan plan);

    [[nodiscard]] const std::string& device() const noexcept { return device_description_; }
    [[nodiscard]] const std::string& memory() const noexcept { return memory_; }  ///< empty without a runtime
    [[nodiscard]] bool hugepages() const noexcept { return hugepages_; }

private:
    [[nodiscard]] Device& plain();
    [[nodiscard]] Context& context(PathKind path);
    void describe(const Context& context);

    PlaceOptions options_;
    std::shared_ptr<OwnRuntime> runtime_;
    std::unique_ptr<Device> plain_;
    std::optional<Attachment> attachment_;
    std::string device_description_;
    std::string memory_;
    bool hugepages_ = false;
};

}  // namespace pollcore::perf
