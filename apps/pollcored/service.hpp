// A built-in service of the daemon: something that peers connect to over a device.
//
// Life: construction (it listens, and has proved that the device can serve it), start(), begin_drain(), close(). The
// destructor closes a service that is still open.
// Thread safety: one thread calls these functions. A service has threads of its own, which start with the affinity of
// the thread that calls start().
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
    /// The address at which it really listens.
    [[nodiscard]] virtual const std::string& address() const noexcept = 0;
    /// What it offers, in words, for the log.
    [[nodiscard]] virtual std::string describe() const = 0;
    [[nodiscard]] virtual std::size_t connections() const noexcept = 0;
    /// Whether its threads have ended by an error, which was logged.
    [[nodiscard]] virtual bool broken() const noexcept = 0;

    virtual void start() = 0;
    /// Takes no new connections and no new work. Returns at once.
    virtual void begin_drain() noexcept = 0;
    /// After begin_drain(): whether all work that was taken before is done.
    [[nodiscard]] virtual bool drained() const noexcept = 0;
    /// Disconnects the peers and ends the threads. False when work was cut short.
    virtual bool close() noexcept = 0;

protected:
    explicit Service(std::string name) : name_(std::move(name)) {}

private:
    std::string name_;
};

/// Makes the service that the configuration describes. Throws Error.
[[nodiscard]] std::unique_ptr<Service> make_service(Runtime& runtime, const ServiceConfig& config);

}  // namespace pollcore::daemon
