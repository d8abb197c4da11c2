#include "receive_queue.hpp"

#include <endian.h>

#include <bit>

#include <infiniband/mlx5dv.h>

#include "refuse.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kLengthMask = 0x7fffffff;

// If a list of segments is shorter than the WQE's room, libmlx5 ends the list with an invalid key.
void read_segments(Receive& receive, const std::uint8_t* wqe, std::uint32_t bytes, const char* whose,
                   std::uint32_t number) {
    for (std::uint32_t at = 0; at + sizeof(mlx5_wqe_data_seg) <= bytes; at += sizeof(mlx5_wqe_data_seg)) {
        const auto* segment = reinterpret_cast<const mlx5_wqe_data_seg*>(wqe + at);
        const std::uint32_t length = be32toh(segment->byte_count);
        const std::uint32_t lkey = be32toh(segment->lkey);
        if (lkey == MLX5_INVALID_LKEY) {
            require(length == 0, "{} {:#x}: receive {} ends with a segment of {} bytes", whose, number, receive.counter,
                    length);
            return;
        }
        require(length != 0, "{} {:#x}: receive {} has a segment without length, which is 2 GiB to hardware", whose,
                number, receive.counter);
        require((length & ~kLengthMask) == 0, "{} {:#x}: receive {} has a segment of {:#x} bytes", whose, number,
                receive.counter, length);
        require(receive.segment_count < Receive::kSegmentsMax, "{} {:#x}: receive {} has too many segments", whose,
                number, receive.counter);
        receive.segments[receive.segment_count++] = {length, lkey, be64toh(segment->addr)};
    }
}

std::uint16_t read_doorbell(const volatile std::uint32_t* doorbell, const char* whose, std::uint32_t number) {
    const std::uint32_t value = be32toh(__atomic_load_n(doorbell, __ATOMIC_ACQUIRE));
    require(value <= 0xffff, "{} {:#x}: the doorbell record of its receives is {:#x}, of more than 16 bits", whose,
            number, value);
    return static_cast<std::uint16_t>(value);
}

}  // namespace

RingReceiveQueue::RingReceiveQueue(std::uint32_t qpn, const std::uint8_t* wqes, std::uint32_t count,
                                   std::uint32_t shift, const volatile std::uint32_t* doorbell)
    : qpn_(qpn), wqes_(wqes), count_(count), shift_(shift), doorbell_(doorbell) {
    require(count == 0 || std::has_single_bit(count), "QP {:#x} has {} receives, which is no power of two", qpn, count);
    require(count == 0 || (shift >= 4 && shift <= 9), "QP {:#x} has receives of 2^{} bytes", qpn, shift);
}

std::uint32_t RingReceiveQueue::left() const {
    if (count_ == 0) {
        return 0;
    }
    const auto posted = static_cast<std::uint16_t>(read_doorbell(doorbell_, "QP", qpn_) - consumed_);
    require(posted <= count_, "QP {:#x}: {} receives were posted to a ring of {}", qpn_, posted, count_);
    return posted;
}

std::optional<Receive> RingReceiveQueue::take() {
    if (left() == 0) {
        return std::nullopt;
    }
    Receive receive;
    receive.counter = consumed_;
    const std::size_t slot = consumed_ & (count_ - 1);
    read_segments(receive, wqes_ + (slot << shift_), 1u << shift_, "QP", qpn_);
    ++consumed_;
    return receive;
}

SharedReceiveQueue::SharedReceiveQueue(const Facts& facts, const std::uint8_t* wqes,
                                       const volatile std::uint32_t* doorbell)
    : facts_(facts), wqes_(wqes), doorbell_(doorbell) {
    // libmlx5 and the kernel compute the distance of two WQEs by this rule.
    while ((std::size_t{1} << shift_) <
           sizeof(mlx5_wqe_srq_next_seg) + std::size_t{facts.max_sge} * sizeof(mlx5_wqe_data_seg)) {
        ++shift_;
    }
}

std::uint32_t SharedReceiveQueue::left() const {
    const auto posted = static_cast<std::uint16_t>(read_doorbell(doorbell_, "SRQ", facts_.number) - consumed_);
    require(posted <= facts_.max_wr, "SRQ {:#x}: {} receives were posted to a queue of {}", facts_.number, posted,
            facts_.max_wr);
    return posted;
}

std::optional<Receive> SharedReceiveQueue::take() {
    if (left() == 0) {
        return std::nullopt;
    }
    const std::uint8_t* wqe = wqes_ + (std::size_t{head_} << shift_);
    Receive receive;
    receive.counter = head_;
    read_segments(receive, wqe + sizeof(mlx5_wqe_srq_next_seg), (1u << shift_) - sizeof(mlx5_wqe_srq_next_seg), "SRQ",
                  facts_.number);
    head_ = be16toh(reinterpret_cast<const mlx5_wqe_srq_next_seg*>(wqe)->next_wqe_index);
    require(head_ <= facts_.max_wr, "SRQ {:#x}: receive {} is followed by {}, of {}", facts_.number, receive.counter,
            head_, facts_.max_wr);
    ++consumed_;
    return receive;
}

bool SharedReceiveQueue::falls_below_limit() noexcept {
    if (limit_ == 0 || left() >= limit_) {
        return false;
    }
    limit_ = 0;
    return true;
}

}  // namespace mlx5_model
