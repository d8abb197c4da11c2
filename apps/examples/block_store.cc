// A block store: a client writes and reads blocks of 4 KiB by messages, and keeps 32 requests under way. Each block has
// a checksum. The client computes it before it writes the block, and checks it after it has read the block. So the
// checksum reveals damage anywhere on the way and in the store.
//
//   block_store CONFIG [BLOCKS]        for example: block_store config/loopback.toml 1024
//
// The client writes all blocks and reads them. Then one block is damaged in the store, and the client reads all blocks
// again. One thread serves client and store in turn.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <span>
#include <vector>

#include "example.hpp"

using namespace pollcore;

namespace {

constexpr std::uint32_t kDepth = 32;
constexpr std::uint32_t kBlock = 4096;
constexpr std::uint64_t kBlocksMax = 1u << 16;
constexpr std::chrono::seconds kPatience{30};

// CRC32C, the checksum of iSCSI and NVMe (RFC 3720, section 12.1). CPUs have an instruction for it.
constexpr std::uint32_t crc32c(std::span<const std::byte> bytes) {
    constexpr auto kTable = [] {
        std::array<std::uint32_t, 256> table{};
        for (std::uint32_t i = 0; i < table.size(); ++i) {
            table[i] = i;
            for (int bit = 0; bit < 8; ++bit) {
                table[i] = table[i] >> 1 ^ (table[i] & 1) * 0x82f63b78;
            }
        }
        return table;
    }();
    std::uint32_t crc = ~0u;
    for (const std::byte byte : bytes) {
        crc = crc >> 8 ^ kTable[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
    }
    return ~crc;
}
static_assert(crc32c(std::array<std::byte, 32>{}) == 0x8a9136aa);  // of RFC 3720, section B.4

enum class Operation : std::uint32_t { write, read };
// Begins each message. The block follows in the request of a write, and in the answer to a read.
struct Header {
    std::uint64_t block;
    std::uint32_t checksum;
    Operation operation;
};

class End {
public:
    explicit End(Runtime& runtime)
        : session_(runtime.open_session({.pool_buffers = 2 * kDepth})),
          sends_(runtime.create_send_pool(
              {.session = &session_, .buffers = 2 * kDepth, .buffer_bytes = sizeof(Header) + kBlock})),
          // Each block begins on a page, as a disk wants it (O_DIRECT, open(2)).
          receives_(runtime.create_receive_pool({.session = &session_,
                                                 .buffers = 2 * kDepth,
                                                 .buffer_bytes = sizeof(Header) + kBlock,
                                                 .first_byte = kBlock - sizeof(Header),
                                                 .stride = 2 * kBlock})),
          qp_(runtime.create_queue_pair({.shares = {{.session = &session_, .send_depth = 2 * kDepth}},
                                         .recv_depth = kDepth,
                                         .pool = &receives_,
                                         .flow = FlowControl::credits})) {}

    QueuePair& qp() { return qp_; }

protected:
    // Sends a message with a block of `bytes` bytes: fill(header, block) writes it in place. Returns false if there is
    // no room now.
    template <class Fill>
    [[nodiscard]] bool send(Header header, std::uint32_t bytes, Fill fill) {
        SendClaim claim = sends_.claim(sizeof header + bytes);
        if (!claim.valid()) {
            return false;
        }
        fill(header, claim.payload().subspan(sizeof header));
        std::memcpy(claim.payload().data(), &header, sizeof header);
        const Refusal refusal = sends_.commit(claim, WorkRequest::send(qp_.handle(), {}).unsignaled());
        if (retryable(refusal)) {
            return false;
        }
        example::accepted(refusal);
        return true;
    }

    // Calls take(header, block) for the messages that have come, in order, until it returns false. The next call then
    // begins with the same message.
    template <class Take>
    void receive(Take take) {
        std::array<Completion, kDepth> completions;
        const std::size_t count = session_.poll(completions);  // also brings the buffers of sent messages back
        arrived_.insert(arrived_.end(), completions.begin(), completions.begin() + count);
        for (; !arrived_.empty(); arrived_.pop_front()) {
            example::succeeded(arrived_.front());
            const std::span<std::byte> message = receives_.message(arrived_.front());
            if (message.size() != sizeof(Header) && message.size() != sizeof(Header) + kBlock) {
                throw std::runtime_error(fmt::format("a message of {} bytes came", message.size()));
            }
            Header header;
            std::memcpy(&header, message.data(), sizeof header);
            if (!take(header, message.subspan(sizeof header))) {
                return;
            }
            example::accepted(session_.release(arrived_.front()));
        }
    }

private:
    Session session_;
    SendPool sends_;
    ReceivePool receives_;
    QueuePair qp_;
    std::deque<Completion> arrived_;
};

class Store : public End {
public:
    Store(Runtime& runtime, std::uint64_t blocks) : End(runtime), blocks_(blocks) {}

    void turn() {
        receive([this](const Header& request, std::span<const std::byte> block) {
            Stored& stored = blocks_.at(request.block);
            if (request.operation == Operation::write) {
                stored.checksum = request.checksum;
                std::copy(block.begin(), block.end(), stored.bytes.begin());
            }
            const std::uint32_t bytes = request.operation == Operation::read ? kBlock : 0;
            return send(request, bytes, [&stored](Header& answer, std::span<std::byte> to) {
                answer.checksum = stored.checksum;
                std::copy_n(stored.bytes.begin(), to.size(), to.begin());
            });
        });
    }

    void damage(std::uint64_t block) { blocks_.at(block).bytes[kBlock / 2] ^= std::byte{1}; }

private:
    struct Stored {
        std::array<std::byte, kBlock> bytes;
        std::uint32_t checksum;
    };
    std::vector<Stored> blocks_;
};

class Client : public End {
public:
    Client(Runtime& runtime, std::uint64_t blocks) : End(runtime), blocks_(blocks) {}

    void begin(Operation operation) {
        operation_ = operation;
        asked_ = answered_ = damaged_ = 0;
    }
    [[nodiscard]] bool done() const { return answered_ == blocks_; }
    [[nodiscard]] std::uint64_t answered() const { return answered_; }
    [[nodiscard]] std::uint64_t damaged() const { return damaged_; }

    // Keeps kDepth requests under way, and takes the answers.
    void turn() {
        while (asked_ < blocks_ && asked_ - answered_ < kDepth && ask()) {
            ++asked_;
        }
        receive([this](const Header& answer, std::span<const std::byte> block) {
            if (answer.block != answered_ || answer.operation != operation_) {
                throw std::runtime_error(
                    fmt::format("the answer for block {} is for block {}", answered_, answer.block));
            }
            if (operation_ == Operation::read && crc32c(block) != answer.checksum) {
                fmt::print("block {} is damaged: its checksum is {:08x}, and {:08x} was written\n", answer.block,
                           crc32c(block), answer.checksum);
                ++damaged_;
            }
            ++answered_;
            return true;
        });
    }

private:
    [[nodiscard]] bool ask() {
        const std::uint32_t bytes = operation_ == Operation::write ? kBlock : 0;
        return send({.block = asked_, .operation = operation_}, bytes, [](Header& request, std::span<std::byte> block) {
            std::generate(block.begin(), block.end(), [random = std::mt19937_64(request.block)]() mutable {
                return static_cast<std::byte>(random());
            });
            request.checksum = crc32c(block);
        });
    }

    std::uint64_t blocks_;
    Operation operation_ = Operation::write;
    std::uint64_t asked_ = 0;
    std::uint64_t answered_ = 0;
    std::uint64_t damaged_ = 0;
};

void use_store(const char* config, std::uint64_t blocks) {
    Runtime runtime(load_config(config));
    Store store(runtime, blocks);
    Client client(runtime, blocks);
    example::connect(client.qp(), store.qp());

    const auto all = [&](Operation operation) {
        client.begin(operation);
        for (const auto end = std::chrono::steady_clock::now() + kPatience; !client.done();) {
            if (std::chrono::steady_clock::now() > end) {
                throw std::runtime_error(fmt::format("only {} of {} blocks were answered", client.answered(), blocks));
            }
            client.turn();
            store.turn();
            std::this_thread::yield();
        }
        return client.damaged();
    };
    if (all(Operation::write) + all(Operation::read) != 0) {
        throw std::runtime_error("blocks are damaged");
    }
    fmt::print("{} blocks written and read, {} requests under way, all checksums right\n", blocks, kDepth);

    store.damage(blocks / 2);
    if (all(Operation::read) != 1) {
        throw std::runtime_error("the one damaged block was not found, or others were");
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 3) {
        fmt::print(stderr, "usage: block_store CONFIG [BLOCKS]\n");
        return 2;
    }
    return example::run([&] { use_store(argv[1], argc > 2 ? example::number(argv[2], 1, kBlocksMax) : 1024); });
}
