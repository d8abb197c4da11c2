// A built-in service of the daemon. Peers connect to it over a device.
//
// Life: the constructor listens, and checks that the device can make the service's queue pairs; then start(),
// begin_drain() and close() follow. The destructor closes a service that is still open.
// Thread safety: one thread calls these functions; name(), address() and connections() may be called by any. A service
// has its own threads; they start with the affinity of the thread that calls start().
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "pollcore/runtime.hpp"

namespace pollcore::daemon {

class Service {
public:
    virtual ~Service() = default;
    Service(const Service&) = delete;
    Service& operator=(const Service&) = delete;

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    /// The address at which the service listens, with the port that the kernel chose if the configuration has port 0.
    [[nodiscard]] virtual const std::string& address() const noexcept = 0;
    /// A description of the offer to peers, for the log.
    [[nodiscard]] virtual std::string describe() const = 0;
    [[nodiscard]] virtual std::size_t connections() const noexcept = 0;
    /// Whether an error, which was logged, has ended a thread of the service.
    [[nodiscard]] virtual bool broken() const noexcept = 0;

    virtual void start() = 0;
    /// Whether the service takes new connections; at first it does. Returns at once. Connections that exist go on.
    virtual void admit_peers(bool yes) noexcept = 0;
    /// From now on the service takes no new connections and no new work. Returns at once.
    virtual void begin_drain() noexcept = 0;
    /// Call after begin_drain(). Returns whether all accepted work is done.
    [[nodiscard]] virtual bool drained() const noexcept = 0;
    /// Disconnects the peers and ends the threads. Returns false when work was cut short.
    virtual bool close() noexcept = 0;

protected:
    explicit Service(std::string name) : name_(std::move(name)) {}

private:
    std::string name_;
};

/// Makes the service that the configuration describes. Throws Error.
[[nodiscard]] std::unique_ptr<Service> make_service(Runtime& runtime, const ServiceConfig& config);

}  // namespace pollcore::daemon
