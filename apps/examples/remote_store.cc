// A store in a peer's memory: the program writes, reads and locks records there by RDMA alone. The peer's CPU does
// nothing.
//
//   remote_store CONFIG        for example: remote_store config/loopback.toml
//
// The program keeps the send queue full while it has requests left. Each record has a checksum, which reveals that the
// record was read while it was being written. Each record also has a lock: a word that is 0, or the number of the
// lock's owner. An owner takes the lock by compare-and-swap.
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "example.hpp"

using namespace pollcore;

namespace {

struct Record {
    std::uint64_t lock;
    std::uint64_t version;
    std::array<std::uint64_t, 5> payload;
    std::uint64_t checksum;

    // FNV-1a over version and payload, word by word.
    [[nodiscard]] std::uint64_t sum() const {
        std::uint64_t hash = 14695981039346656037ull;
        const auto mix = [&hash](std::uint64_t word) { hash = (hash ^ word) * 1099511628211ull; };
        mix(version);
        for (const std::uint64_t word : payload) {
            mix(word);
        }
        return hash;
    }
};
static_assert(sizeof(Record) == 64);

class Store {
public:
    static constexpr std::size_t kRecords = 4096;

    // `remote` is the peer's region; `local` holds a copy of every record.
    Store(Session& session, QueuePair& qp, MemoryRegion& local, const MemoryRegion& remote)
        : session_(session), qp_(qp), local_(local), remote_(remote.remote()) {}

    Record& record(std::size_t index) { return reinterpret_cast<Record*>(local_.data())[index]; }

    void write_all() {
        for_all(
            [this](std::size_t index) { return WorkRequest::rdma_write(qp_.handle(), local(index), remote(index)); });
    }
    void read_all() {
        for_all(
            [this](std::size_t index) { return WorkRequest::rdma_read(qp_.handle(), local(index), remote(index)); });
    }
    // Writes the previous value of each lock into the `lock` of the local record.
    void swap_all(std::uint64_t expected, std::uint64_t wanted) {
        for_all([&](std::size_t index) {
            const Sge old = local_.sge(index * sizeof(Record) + offsetof(Record, lock), sizeof(std::uint64_t));
            return WorkRequest::atomic_cmp_and_swp(qp_.handle(), old, remote(index, offsetof(Record, lock)), expected,
                                                   wanted);
        });
    }

private:
    Sge local(std::size_t index) const { return local_.sge(index * sizeof(Record), sizeof(Record)); }
    RemoteMemory remote(std::size_t index, std::size_t offset = 0) const {
        return {remote_.addr + index * sizeof(Record) + offset, remote_.rkey};
    }

    // Submits a request for each record, as fast as the send queue has room. Returns when all requests have completed.
    void for_all(const std::function<WorkRequest(std::size_t)>& make) {
        std::size_t submitted = 0;
        for (std::size_t completed = 0; completed < kRecords;) {
            while (submitted < kRecords) {
                const Refusal refusal = session_.try_submit(make(submitted));
                if (refusal == Refusal::send_queue_full || refusal == Refusal::submission_ring_full ||
                    refusal == Refusal::completion_ring_full) {
                    break;  // room comes with the next completions
                }
                if (refusal != Refusal::none) {
                    throw std::runtime_error(fmt::format("the store refused: {}", refusal_name(refusal)));
                }
                ++submitted;
            }
            (void)example::next_completion(session_);
            ++completed;
        }
    }

    Session& session_;
    QueuePair& qp_;
    MemoryRegion& local_;
    RemoteMemory remote_;
};

void require(bool holds, const char* what, std::size_t index) {
    if (!holds) {
        throw std::runtime_error(fmt::format("record {}: {}", index, what));
    }
}

void use_store(const char* config) {
    Runtime runtime(load_config(config));
    Session session = runtime.open_session();
    MemoryRegion local = runtime.allocate(Store::kRecords * sizeof(Record), Access::local());
    MemoryRegion remote = runtime.allocate(Store::kRecords * sizeof(Record), Access::all());  // the peer's
    QueuePair client = runtime.create_queue_pair({.shares = {{.session = &session}}});
    QueuePair peer =
        runtime.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
    example::connect(client, peer);
    Store store(session, client, local, remote);

    for (std::size_t i = 0; i < Store::kRecords; ++i) {
        store.record(i) = {.lock = 0, .version = 1, .payload = {i, i * i, ~i, i << 32, 42}, .checksum = 0};
        store.record(i).checksum = store.record(i).sum();
    }
    store.write_all();
    fmt::print("{} records written\n", Store::kRecords);

    std::memset(local.data(), 0, local.size());
    store.read_all();
    for (std::size_t i = 0; i < Store::kRecords; ++i) {
        require(store.record(i).payload[0] == i && store.record(i).sum() == store.record(i).checksum,
                "its checksum is wrong", i);
    }
    fmt::print("{} records read, all checksums right\n", Store::kRecords);

    constexpr std::uint64_t kOwner = 7;
    store.swap_all(0, kOwner);
    for (std::size_t i = 0; i < Store::kRecords; ++i) {
        require(store.record(i).lock == 0, "was locked already", i);
    }
    store.swap_all(0, kOwner + 1);
    for (std::size_t i = 0; i < Store::kRecords; ++i) {
        require(store.record(i).lock == kOwner, "was locked by nobody", i);
    }
    fmt::print("{} records locked once, and refused to the second owner\n", Store::kRecords);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        fmt::print(stderr, "usage: remote_store CONFIG\n");
        return 2;
    }
    return example::run([&] { use_store(argv[1]); });
}
