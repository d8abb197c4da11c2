// Formats: Mellanox Adapters Programmer's Reference Manual, "Send Queue", as far as they are in libmlx5's mlx5dv.h.
#include "hca_send_queue.hpp"

#include <endian.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "refuse.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kBlock = 64;
constexpr std::uint32_t kSegment = 16;
constexpr std::uint8_t kFences = MLX5_WQE_CTRL_FENCE | MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE;
constexpr std::uint8_t kControlBits = kFences | MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED;
constexpr std::uint32_t kKlmUnit = 4;  // the count of octowords is a multiple of 4

bool is_atomic(std::uint8_t opcode) {
    return opcode == MLX5_OPCODE_ATOMIC_CS || opcode == MLX5_OPCODE_ATOMIC_FA;
}

bool has_remote_address(std::uint8_t opcode) {
    return opcode == MLX5_OPCODE_RDMA_WRITE || opcode == MLX5_OPCODE_RDMA_WRITE_IMM ||
           opcode == MLX5_OPCODE_RDMA_READ || is_atomic(opcode);
}

bool allowed(ibv_qp_type type, std::uint8_t opcode) {
    switch (opcode) {
        case MLX5_OPCODE_NOP:
        case MLX5_OPCODE_SEND:
        case MLX5_OPCODE_SEND_IMM: return true;
        case MLX5_OPCODE_RDMA_WRITE:
        case MLX5_OPCODE_RDMA_WRITE_IMM:
        case MLX5_OPCODE_SEND_INVAL:
        case MLX5_OPCODE_UMR: return type != IBV_QPT_UD;
        case MLX5_OPCODE_RDMA_READ:
        case MLX5_OPCODE_ATOMIC_CS:
        case MLX5_OPCODE_ATOMIC_FA: return type == IBV_QPT_RC;
        default: return false;
    }
}

// Reads a WQE's segments one after the other; refuses a WQE that ends too early.
class Cursor {
public:
    Cursor(const std::uint8_t* wqe, std::uint32_t bytes, std::uint32_t qpn, std::uint16_t index)
        : at_(wqe), left_(bytes), qpn_(qpn), index_(index) {}
    template <class Segment>
    const Segment& take(const char* what, std::uint32_t bytes = sizeof(Segment)) {
        require(bytes <= left_, "QP {:#x}: WQE {} ends within its {} segment", qpn_, index_, what);
        const auto* segment = reinterpret_cast<const Segment*>(at_);
        at_ += bytes;
        left_ -= bytes;
        return *segment;
    }
    [[nodiscard]] const std::uint8_t* at() const { return at_; }
    [[nodiscard]] std::uint32_t left() const { return left_; }

private:
    const std::uint8_t* at_;
    std::uint32_t left_;
    std::uint32_t qpn_;
    std::uint16_t index_;
};

int access_of(std::uint8_t flags) {
    int access = 0;
    access |= (flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE) != 0 ? IBV_ACCESS_LOCAL_WRITE : 0;
    access |= (flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE) != 0 ? IBV_ACCESS_REMOTE_WRITE : 0;
    access |= (flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ) != 0 ? IBV_ACCESS_REMOTE_READ : 0;
    access |= (flags & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC) != 0 ? IBV_ACCESS_REMOTE_ATOMIC : 0;
    return access;
}

void read_bind(SendWqe& wqe, Cursor& cursor, std::uint32_t qpn) {
    const auto& control = cursor.take<mlx5_wqe_umr_ctrl_seg>("UMR control");
    const auto& context = cursor.take<mlx5_wqe_mkey_context_seg>("mkey context");
    BindRequest& bind = wqe.bind;
    bind.key = be32toh(wqe.immediate);
    bind.unbind = (context.free & MLX5_WQE_MKEY_CONTEXT_FREE) != 0;
    bind.only_if_free = (control.flags & MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE) != 0;
    bind.only_of_qp = (control.flags & MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN) != 0;
    const std::uint64_t mask = be64toh(control.mkey_mask);
    require((control.flags & MLX5_WQE_UMR_CTRL_FLAG_INLINE) != 0, "QP {:#x}: the UMR of WQE {} is not inline", qpn,
            wqe.index);
    require((mask & MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE) != 0,
            "QP {:#x}: the UMR of WQE {} does not say whether the key is free", qpn, wqe.index);
    const std::uint32_t octowords = be16toh(control.klm_octowords);
    require(octowords == (bind.unbind ? 0 : kKlmUnit), "QP {:#x}: the UMR of WQE {} has {} octowords of translations",
            qpn, wqe.index, octowords);
    bind.new_key = be32toh(context.qpn_mkey) & 0xff;
    bind.qpn = be32toh(context.qpn_mkey) >> 8;
    if (bind.unbind) {
        return;
    }
    constexpr std::uint64_t kNeeds = MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN | MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR;
    require((mask & kNeeds) == kNeeds, "QP {:#x}: the UMR of WQE {} sets no range", qpn, wqe.index);
    const auto& klm = cursor.take<mlx5_wqe_umr_klm_seg>("translation", kBlock);
    bind.access = access_of(context.access_flags);
    bind.start = be64toh(context.start_addr);
    bind.length = be64toh(context.len);
    bind.region_key = be32toh(klm.mkey);
    bind.region_address = be64toh(klm.address);
    require(be32toh(klm.byte_count) == static_cast<std::uint32_t>(bind.length),
            "QP {:#x}: the UMR of WQE {} translates {} bytes of {}", qpn, wqe.index, be32toh(klm.byte_count),
            bind.length);
}

void read_data(SendWqe& wqe, Cursor& cursor, std::uint32_t qpn) {
    while (cursor.left() > 0) {
        const std::uint32_t word = be32toh(*reinterpret_cast<const std::uint32_t*>(cursor.at()));
        if ((word & MLX5_INLINE_SEG) != 0) {
            const std::uint32_t bytes = word & ~std::uint32_t{MLX5_INLINE_SEG};
            const std::uint32_t whole =
                (static_cast<std::uint32_t>(sizeof(mlx5_wqe_inl_data_seg)) + bytes + kSegment - 1) / kSegment *
                kSegment;
            require(!wqe.is_inline && wqe.segment_count == 0, "QP {:#x}: WQE {} has inline data behind other data", qpn,
                    wqe.index);
            require(whole == cursor.left(), "QP {:#x}: WQE {} has {} inline bytes in {}", qpn, wqe.index, bytes,
                    cursor.left());
            std::memcpy(wqe.inline_data, cursor.at() + sizeof(mlx5_wqe_inl_data_seg), bytes);
            wqe.is_inline = true;
            wqe.inline_bytes = bytes;
            cursor.take<std::uint8_t>("inline", whole);
            continue;
        }
        const auto& segment = cursor.take<mlx5_wqe_data_seg>("data");
        require(word != 0, "QP {:#x}: WQE {} has a data segment without length, which is 2 GiB to hardware", qpn,
                wqe.index);
        require(wqe.segment_count < SendWqe::kSegmentsMax, "QP {:#x}: WQE {} has too many data segments", qpn,
                wqe.index);
        wqe.segments[wqe.segment_count++] = {word, be32toh(segment.lkey), be64toh(segment.addr)};
    }
}

}  // namespace

std::uint64_t SendWqe::length() const noexcept {
    std::uint64_t bytes = inline_bytes;
    for (int i = 0; i < segment_count; ++i) {
        bytes += segments[i].length;
    }
    return bytes;
}

bool SendWqe::takes_receive() const noexcept {
    return opcode == MLX5_OPCODE_SEND || opcode == MLX5_OPCODE_SEND_IMM || opcode == MLX5_OPCODE_SEND_INVAL ||
           opcode == MLX5_OPCODE_RDMA_WRITE_IMM;
}

bool SendWqe::answers_with_data() const noexcept {
    return opcode == MLX5_OPCODE_RDMA_READ || is_atomic(opcode);
}

SendQueue::SendQueue(std::uint32_t qpn, ibv_qp_type type, const SendQueueMemory& memory)
    : qpn_(qpn), type_(type), memory_(memory) {
    require(memory.block_count == 0 || std::has_single_bit(memory.block_count),
            "QP {:#x} has {} send blocks, which is no power of two", qpn, memory.block_count);
}

std::uint16_t SendQueue::posted() const {
    const std::uint32_t value = be32toh(__atomic_load_n(memory_.doorbell, __ATOMIC_ACQUIRE));
    require(value <= 0xffff, "QP {:#x}: the doorbell record of its sends is {:#x}, of more than 16 bits", qpn_, value);
    return static_cast<std::uint16_t>(value);
}

bool SendQueue::empty() const {
    return memory_.block_count == 0 || posted() == consumed_;
}

const SendWqe* SendQueue::next() {
    if (memory_.block_count == 0) {
        return nullptr;
    }
    const std::uint16_t now = posted();
    if (now != last_posted_) {
        const auto outstanding = static_cast<std::uint16_t>(now - consumed_);
        const auto before = static_cast<std::uint16_t>(last_posted_ - consumed_);
        require(outstanding <= memory_.block_count && outstanding > before,
                "QP {:#x}: the doorbell record goes from {} to {} while {} was carried out last, in {} blocks", qpn_,
                last_posted_, now, consumed_, memory_.block_count);
        last_posted_ = now;
        ++doorbells_.records;
        look_for_doorbell(now);
    }
    if (now == consumed_) {
        return nullptr;
    }
    if (!has_) {
        read(now);
        has_ = true;
    }
    return &wqe_;
}

void SendQueue::done() {
    consumed_ = static_cast<std::uint16_t>(consumed_ + wqe_.blocks);
    has_ = false;
}

void SendQueue::reset() noexcept {
    consumed_ = last_posted_ = 0;
    has_ = false;
}

void SendQueue::read(std::uint16_t posted) {
    const std::uint32_t mask = memory_.block_count - 1;
    const auto block = [&](std::uint32_t number) {
        return memory_.wqes + std::size_t{(consumed_ + number) & mask} * kBlock;
    };
    const auto* control = reinterpret_cast<const mlx5_wqe_ctrl_seg*>(block(0));
    const std::uint32_t word = be32toh(control->opmod_idx_opcode);
    const std::uint32_t whose = be32toh(control->qpn_ds);
    const auto index = static_cast<std::uint16_t>(word >> 8);
    const std::uint32_t segments = whose & 0x3f;
    const std::uint32_t blocks = (segments * kSegment + kBlock - 1) / kBlock;
    require(index == consumed_, "QP {:#x}: WQE {} says that it is {}", qpn_, consumed_, index);
    require(whose >> 8 == qpn_, "QP {:#x}: WQE {} says that it is of QP {:#x}", qpn_, index, whose >> 8);
    require(segments >= 1 && (whose & 0xc0) == 0, "QP {:#x}: WQE {} has a size of {:#x} segments", qpn_, index,
            whose & 0xff);
    require(blocks <= static_cast<std::uint16_t>(posted - consumed_),
            "QP {:#x}: WQE {} has {} blocks, and the doorbell tells of {}", qpn_, index, blocks,
            static_cast<std::uint16_t>(posted - consumed_));
    require(word >> 24 == 0, "QP {:#x}: WQE {} has the modifier {:#x}", qpn_, index, word >> 24);
    require((control->fm_ce_se & ~kControlBits) == 0, "QP {:#x}: WQE {} has the flags {:#x}", qpn_, index,
            control->fm_ce_se);
    require(control->dci_stream_channel_id == 0 && control->signature == 0, "QP {:#x}: WQE {} has reserved bytes", qpn_,
            index);

    std::uint8_t bytes[SendWqe::kBytesMax];
    for (std::uint32_t i = 0; i < blocks; ++i) {
        std::memcpy(bytes + i * kBlock, block(i), kBlock);
    }
    SendWqe& wqe = wqe_;
    wqe.index = index;
    wqe.blocks = static_cast<std::uint16_t>(blocks);
    wqe.opcode = word & 0xff;
    wqe.signaled = (control->fm_ce_se & MLX5_WQE_CTRL_CQ_UPDATE) != 0;
    wqe.solicited = (control->fm_ce_se & MLX5_WQE_CTRL_SOLICITED) != 0;
    wqe.fenced = (control->fm_ce_se & kFences) != 0;
    wqe.immediate = control->imm;
    wqe.is_inline = false;
    wqe.inline_bytes = 0;
    wqe.segment_count = 0;
    wqe.bind = {};
    require(allowed(type_, wqe.opcode), "QP {:#x}: WQE {} has opcode {:#x}, which its type has not", qpn_, index,
            wqe.opcode);

    Cursor cursor(bytes, segments * kSegment, qpn_, index);
    cursor.take<mlx5_wqe_ctrl_seg>("control");
    if (type_ == IBV_QPT_UD && wqe.opcode != MLX5_OPCODE_NOP) {
        const mlx5_wqe_av& av = cursor.take<mlx5_wqe_datagram_seg>("datagram").av;
        const std::uint32_t to = be32toh(av.dqp_dct);
        require((to & MLX5_EXTENDED_UD_AV) != 0, "QP {:#x}: WQE {} has an address vector of the short form", qpn_,
                index);
        wqe.dest_qpn = to & 0xffffff;
        wqe.qkey = be32toh(av.key.qkey.qkey);
        std::memcpy(wqe.dest_gid.raw, av.rgid, sizeof wqe.dest_gid.raw);
    }
    if (has_remote_address(wqe.opcode)) {
        const auto& remote = cursor.take<mlx5_wqe_raddr_seg>("remote address");
        require(remote.reserved == 0, "QP {:#x}: WQE {} has reserved bytes behind its remote address", qpn_, index);
        wqe.remote_address = be64toh(remote.raddr);
        wqe.rkey = be32toh(remote.rkey);
    }
    if (is_atomic(wqe.opcode)) {
        const auto& atomic = cursor.take<mlx5_wqe_atomic_seg>("atomic");
        wqe.swap_add = be64toh(atomic.swap_add);
        wqe.compare = be64toh(atomic.compare);
    }
    if (wqe.opcode == MLX5_OPCODE_UMR) {
        read_bind(wqe, cursor, qpn_);
        require(cursor.left() == 0, "QP {:#x}: the UMR of WQE {} is followed by {} bytes", qpn_, index, cursor.left());
        return;
    }
    read_data(wqe, cursor, qpn_);
    require(!wqe.answers_with_data() || !wqe.is_inline, "QP {:#x}: WQE {} would read into inline data", qpn_, index);
    require(!is_atomic(wqe.opcode) || (wqe.segment_count == 1 && wqe.segments[0].length == sizeof(std::uint64_t)),
            "QP {:#x}: WQE {} is an atomic with {} data segments, of {} bytes", qpn_, index, wqe.segment_count,
            wqe.length());
}

// A doorbell writes the first 8 bytes of the last WQE. With BlueFlame, it writes the whole WQE. A page has two
// registers for doorbells, and libmlx5 alternates between the two halves of a register. So a register holds only the
// last two doorbells of the queue pairs that ring there.
void SendQueue::look_for_doorbell(std::uint16_t posted) {
    if (memory_.uar == nullptr) {
        return;
    }
    for (const std::uint32_t offset : {0x800u, 0x900u, 0xa00u, 0xb00u}) {
        std::uint32_t rung[kBlock / 4];
        for (std::uint32_t i = 0; i < kBlock / 4; ++i) {
            rung[i] = reinterpret_cast<const volatile std::uint32_t*>(memory_.uar + offset)[i];
        }
        const auto index = static_cast<std::uint16_t>(be32toh(rung[0]) >> 8);
        const std::uint32_t whose = be32toh(rung[1]);
        const auto blocks = static_cast<std::uint16_t>(((whose & 0x3f) * kSegment + kBlock - 1) / kBlock);
        if (whose >> 8 != qpn_ || static_cast<std::uint16_t>(index + blocks) != posted) {
            continue;
        }
        ++doorbells_.rung;
        const std::uint8_t* wqe = memory_.wqes + std::size_t{index & (memory_.block_count - 1)} * kBlock;
        const std::size_t bytes = std::min<std::size_t>(kBlock, (whose & 0x3f) * kSegment);
        doorbells_.blueflame += std::memcmp(rung, wqe, bytes) == 0;
        return;
    }
}

}  // namespace mlx5_model
