// The service "memory": a registered region in which peers read, write and do atomics. Each peer learns the region's
// address from a MemoryOffer, in the private data of the answer to its connection request.
//
// The device alone executes the operations: no code here runs for them. All peers share the region, which is filled
// with zeros at first. The service takes no messages: if a peer sends one, the peer's request fails after its RNR
// retries, if their number is limited.
#pragma once

#include <string>
#include <vector>

#include "reception.hpp"
#include "service.hpp"

namespace pollcore::daemon {

class MemoryService final : public Service, private ConnectionHandler {
public:
    MemoryService(Runtime& runtime, const ServiceConfig& config);
    ~MemoryService() override;

    [[nodiscard]] const std::string& address() const noexcept override { return reception_.address(); }
    [[nodiscard]] std::string describe() const override;
    [[nodiscard]] std::size_t connections() const noexcept override { return reception_.connections(); }
    [[nodiscard]] bool broken() const noexcept override { return reception_.broken(); }

    void start() override { reception_.start(); }
    void admit_peers(bool yes) noexcept override { reception_.admit_peers(yes); }
    void begin_drain() noexcept override { reception_.stop_listening(); }
    /// Returns true as soon as the service has stopped listening: the service itself never has work in flight.
    [[nodiscard]] bool drained() const noexcept override { return !reception_.listening(); }
    bool close() noexcept override { return reception_.close(); }

private:
    [[nodiscard]] QueuePairOptions queue_pair_options() override;
    [[nodiscard]] ConnectOptions answer() override;
    void open(std::uint32_t slot, QpHandle qp) override { qps_[slot] = qp; }
    [[nodiscard]] std::optional<Ending> ending(std::uint32_t slot) override;
    void closed(std::uint32_t slot) override { qps_[slot] = QpHandle{}; }
    [[nodiscard]] bool vacant(std::uint32_t) const noexcept override { return true; }

    const ServiceConfig config_;
    ProtectionDomain pd_;
    MemoryRegion region_;
    Session session_;  // posts nothing: it selects the worker, and returns the state of the queue pairs
    std::vector<QpHandle> qps_;
    Reception reception_;  // the last member, because its thread uses all members above
};

}  // namespace pollcore::daemon
