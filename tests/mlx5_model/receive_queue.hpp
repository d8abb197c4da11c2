// The NIC's view of a receive queue: a queue pair's own ring, or the list of a shared receive queue.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace mlx5_model {

class UverbsFile;

struct DataSegment {
    std::uint32_t length = 0;
    std::uint32_t lkey = 0;
    std::uint64_t address = 0;
};

struct Receive {
    static constexpr int kSegmentsMax = 32;
    std::uint16_t counter = 0;  ///< the WQE counter that the CQE reports
    int segment_count = 0;
    DataSegment segments[kSegmentsMax];
    [[nodiscard]] std::span<const DataSegment> data() const noexcept {
        return {segments, static_cast<std::size_t>(segment_count)};
    }
};

/// Not thread-safe: callers hold the fabric's lock. Aborts on a WQE or a doorbell record that hardware would not
/// accept.
class ReceiveQueue {
public:
    virtual ~ReceiveQueue() = default;
    [[nodiscard]] virtual std::uint32_t left() const = 0;
    /// Takes the oldest receive. Returns nullopt if there is none.
    virtual std::optional<Receive> take() = 0;
};

class RingReceiveQueue final : public ReceiveQueue {
public:
    RingReceiveQueue(std::uint32_t qpn, const std::uint8_t* wqes, std::uint32_t count, std::uint32_t shift,
                     const volatile std::uint32_t* doorbell);
    [[nodiscard]] std::uint32_t left() const override;
    std::optional<Receive> take() override;
    /// Call when the queue pair enters RESET, because libmlx5 then begins at index 0 again.
    void reset() noexcept { consumed_ = 0; }

private:
    std::uint32_t qpn_;
    const std::uint8_t* wqes_;
    std::uint32_t count_;
    std::uint32_t shift_;
    const volatile std::uint32_t* doorbell_;
    std::uint16_t consumed_ = 0;
};

class SharedReceiveQueue final : public ReceiveQueue {
public:
    struct Facts {
        std::uint32_t number = 0;
        std::uint32_t pd = 0;
        std::uint32_t max_wr = 0;
        std::uint32_t max_sge = 0;
    };
    SharedReceiveQueue(const Facts& facts, const std::uint8_t* wqes, const volatile std::uint32_t* doorbell);
    [[nodiscard]] const Facts& facts() const noexcept { return facts_; }
    [[nodiscard]] std::uint32_t left() const override;
    std::optional<Receive> take() override;

    [[nodiscard]] std::uint32_t limit() const noexcept { return limit_; }
    void set_limit(std::uint32_t limit) noexcept { limit_ = limit; }
    /// Whether the queue has fallen below its limit; true only once for each limit that is set.
    [[nodiscard]] bool falls_below_limit() noexcept;

private:
    Facts facts_;
    const std::uint8_t* wqes_;
    std::uint32_t shift_ = 5;
    const volatile std::uint32_t* doorbell_;
    std::uint32_t limit_ = 0;
    std::uint16_t head_ = 0;
    std::uint16_t consumed_ = 0;
};

}  // namespace mlx5_model
