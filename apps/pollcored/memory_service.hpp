// The service "memory": a registered region in which peers read, write and do atomics by themselves. The private data
// of the answer to each peer says where the region is, as a MemoryOffer.
//
// Nothing here runs per operation: the device serves the peers. All peers share the region, which starts as zeros. The
// service takes no messages; a peer that sends one fails by its own RNR retries.
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
    void begin_drain() noexcept override { reception_.stop_listening(); }
    /// Always true once it stops listening: peers finish their operations themselves, and the service takes no work.
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
    Session session_;  // posts nothing: it names the worker, and carries the state of the queue pairs
    std::vector<QpHandle> qps_;
    Reception reception_;  // last: its thread uses all of the above
};

}  // namespace pollcore::daemon
