// Sends arbitrary messages, as an attached process could, to a server in this process. The server's answers must be
// well-formed. After the sender has hung up, the server must keep nothing that the sender has created.
// POLLCORE_FUZZ_SECONDS sets the duration. If a test fails, it prints its seed.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "attach/packet_socket.hpp"
#include "attach/wire.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"
#include "test_cpus.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

using AllRequests =
    std::tuple<wire::Attach, wire::OpenSession, wire::CloseSession, wire::CreateQp, wire::CloseQp, wire::ResetQp,
               wire::AskQpInfo, wire::AskQpStatus, wire::ConnectTo, wire::Connect, wire::Disconnect, wire::AskRnrCounts,
               wire::Listen, wire::StopListening, wire::NextRequest, wire::Accept, wire::Reject, wire::CreatePd,
               wire::ReleasePd, wire::RegisterMemory, wire::Deregister, wire::CreateWindow, wire::AskWindowRkey,
               wire::Deallocate, wire::CreateAh, wire::CreateAhTo, wire::CreateAhBack, wire::DestroyAh, wire::CreateSrq,
               wire::CloseSrq, wire::ArmLimit, wire::AskSrqLimit, wire::CreatePool, wire::ClosePool,
               wire::AskHeldBuffers, wire::AskWorkerCounters, wire::AskControlCounters, wire::AskDevice,
               wire::BeginConnect, wire::BeginAccept, wire::BeginEnding, wire::Cancel, wire::NextEvents, wire::ModifyQp,
               wire::AskQp, wire::AskDeviceAttributes, wire::AskPort, wire::AskGids, wire::AskPkey, wire::ShareContext,
               wire::FindKey, wire::CopyStatistics>;

class Fuzzer {
public:
    Fuzzer(std::string path, unsigned seed) : path_(std::move(path)), random_(seed) {}

    /// Attaches, and sends messages until the server hangs up or `messages` messages were sent.
    void connection(int messages) {
        socket_ = wire::connect_to(path_);
        id_ = 0;
        wire::Request<wire::Attach> hello{{.kind = wire::Kind::attach, .id = ++id_}, {}};
        send(std::as_bytes(std::span(&hello, 1)));
        for (int i = 0; i < messages && open_; ++i) {
            one_of(std::make_index_sequence<std::tuple_size_v<AllRequests>>{},
                   random_() % std::tuple_size_v<AllRequests>);
            take_answers(0);
        }
        if (open_) {
            take_answers(50);
        }
        socket_.reset();
        open_ = true;
    }
    [[nodiscard]] std::uint64_t accepted() const { return accepted_; }

private:
    template <std::size_t... I>
    void one_of(std::index_sequence<I...>, std::size_t which) {
        (void)((I == which && (request<std::tuple_element_t<I, AllRequests>>(), true)) || ...);
    }

    template <class Body>
    void request() {
        wire::Request<Body> made{};
        auto* bytes = reinterpret_cast<std::byte*>(&made.body);
        // Small numbers are likely to be the numbers of objects that this connection has created.
        for (std::size_t at = 0; at + 4 <= sizeof(Body); at += 4) {
            std::uint32_t word = 0;
            switch (random_() % 8) {
                case 0: word = static_cast<std::uint32_t>(random_()); break;
                case 1: word = 0xffffffff; break;
                case 2:
                case 3: word = static_cast<std::uint32_t>(random_() % 300); break;
                case 4:
                    word = 1u << 16 | static_cast<std::uint32_t>(random_() % 8);
                    break;  // a handle of the first generation
                case 5: word = 1u << random_() % 32; break;
                default: break;
            }
            std::memcpy(bytes + at, &word, sizeof(word));
        }
        repair(made.body);
        made.header = {.kind = Body::kKind, .id = ++id_};
        if (random_() % 500 == 0) {
            made.header.magic = static_cast<std::uint32_t>(random_());
        }
        std::vector<UniqueFd> fds;
        if constexpr (std::is_same_v<Body, wire::RegisterMemory>) {
            fds.push_back(memory(made.body.bytes + made.body.offset % 10'000));
        } else if constexpr (std::is_same_v<Body, wire::OpenSession>) {
            fds.push_back(memory(made.body.bytes));
        } else if (random_() % 100 == 0) {
            fds.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
        }
        std::size_t size = sizeof(made);
        if (random_() % 300 == 0) {
            size -= random_() % size;  // cuts the message short
        }
        send(std::as_bytes(std::span(&made, 1)).first(size), fds);
    }

    // Usually makes the body valid enough to pass the server's first checks.
    template <class Body>
    void repair(Body& body) {
        if constexpr (requires { body.what; }) {
            repair(body.what);
        }
        if constexpr (requires { body.device = NameText(); }) {
            if constexpr (std::is_same_v<decltype(body.device), NameText>) {
                body.device = NameText(random_() % 4 == 0 ? "no such" : "");
            }
        }
        if constexpr (requires { body.spec.device; }) {
            body.spec.device = NameText();
        }
        if constexpr (requires { body.timeout_ms; }) {
            body.timeout_ms %= 20;
        }
        if constexpr (requires { body.address; }) {
            body.address = wire::AddressText("fuzz" + std::to_string(random_() % 3));
        }
        if constexpr (std::is_same_v<Body, wire::OpenSession>) {
            body.worker = NameText();
            body.submission_slots = 1u << random_() % 8;
            body.completion_slots = 1u << random_() % 8;
            body.pool_buffers = static_cast<std::uint32_t>(random_() % 64);
            body.wide = random_() % 2;
            body.events = random_() % 2;
            body.device_time = random_() % 2;
            body.bytes = SessionLayout{64,    body.submission_slots, body.completion_slots, body.wide != 0,
                                       false, body.pool_buffers}
                             .bytes();
        }
        if constexpr (std::is_same_v<Body, wire::RegisterMemory>) {
            body.parent = random_() % 3;
            body.bytes = 1 + random_() % 20'000;
            body.offset = random_() % 20 == 0 ? body.offset : random_() % 2 * (random_() % 5'000);
            flags(&body.access, sizeof(body.access));
        }
        if constexpr (std::is_same_v<Body, wire::CreateQp>) {
            body.spec.share_count = random_() % 16 == 0 ? body.spec.share_count : 1;
            body.spec.shares[0] = {static_cast<std::uint32_t>(random_() % 20),
                                   static_cast<std::uint32_t>(random_() % 32)};
            body.spec.recv_depth %= 64;
            body.spec.srq = random_() % 4 == 0 ? body.spec.srq : SrqHandle{};
            body.spec.pool = random_() % 4 == 0 ? body.spec.pool : PoolHandle{};
            body.spec.rendezvous_pool = random_() % 8 == 0 ? body.spec.rendezvous_pool : PoolHandle{};
            body.spec.type = static_cast<QpType>(random_() % 20 == 0 ? random_() : 2 + random_() % 3);
            body.spec.flow = static_cast<FlowControl>(random_() % (std::size(kFlowControls) + 1));
            flags(&body.spec.remote_access, sizeof(body.spec.remote_access));
            flags(&body.spec.separate_cqs, 1);
            flags(&body.spec.coalesce_signals, 1);
            body.spec.pd = random_() % 4 == 0 ? body.spec.pd : 0;
        }
        if constexpr (std::is_same_v<Body, wire::CreatePool>) {
            body.spec.buffers %= 16;
            flags(&body.spec.ring, 1);
        }
    }
    void flags(void* at, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            static_cast<std::byte*>(at)[i] = static_cast<std::byte>(random_() % 40 == 0 ? random_() : random_() % 2);
        }
    }

    UniqueFd memory(std::uint64_t bytes) {
        UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | (random_() % 20 == 0 ? 0u : MFD_ALLOW_SEALING)));
        const std::uint64_t size = random_() % 20 == 0 ? random_() % 100'000 : (bytes + 4095) / 4096 * 4096;
        (void)!::ftruncate(fd.get(), static_cast<off_t>(size));
        if (random_() % 20 != 0) {  // the server refuses pages that nobody has touched
            (void)!::fallocate(fd.get(), 0, 0, static_cast<off_t>(size));
        }
        return fd;
    }

    void send(std::span<const std::byte> bytes, const std::vector<UniqueFd>& fds = {}) {
        std::vector<int> numbers;
        for (const UniqueFd& fd : fds) {
            numbers.push_back(fd.get());
        }
        int error = 0;
        while ((error = wire::send_packet(socket_.get(), bytes, numbers)) == EAGAIN) {
            take_answers(10);
        }
        // A client may pass descriptors only after the server has attached it, which may not have happened yet.
        for (int i = 0; error == EPERM && i < 20; ++i) {
            take_answers(1);
            error = wire::send_packet(socket_.get(), bytes, numbers);
        }
        open_ = open_ && (error == 0 || error == EPERM || error == EAGAIN);
    }

    void take_answers(int wait_ms) {
        pollfd readable{.fd = socket_.get(), .events = POLLIN, .revents = 0};
        while (open_ && ::poll(&readable, 1, wait_ms) > 0) {
            wire::Packet packet;
            const int error = wire::recv_packet(socket_.get(), packet);
            if (error != 0) {
                open_ = error == EAGAIN;
                return;
            }
            ASSERT_EQ(packet.header().magic, wire::kMagic);
            std::int32_t outcome = -1;
            ASSERT_GE(packet.bytes.size(), sizeof(wire::Header) + sizeof(wire::Outcome));
            std::memcpy(&outcome, packet.bytes.data() + sizeof(wire::Header), sizeof(outcome));
            accepted_ += outcome == 0;
        }
    }

    std::string path_;
    std::mt19937 random_;
    UniqueFd socket_;
    std::uint64_t id_ = 0;
    bool open_ = true;
    std::uint64_t accepted_ = 0;
};

TEST(AttachFuzz, WhateverIsAskedIsAnsweredOrTheAskerGoes) {
    const char* given = std::getenv("POLLCORE_FUZZ_SECONDS");
    const auto seconds = std::chrono::seconds(given != nullptr ? std::atoi(given) : 5);
    const char* given_seed = std::getenv("POLLCORE_FUZZ_SEED");
    const unsigned seed = given_seed != nullptr ? static_cast<unsigned>(std::atoi(given_seed)) : std::random_device{}();
    SCOPED_TRACE("POLLCORE_FUZZ_SEED=" + std::to_string(seed));

    Config config;
    config.share_cores = true;  // other tests may run on these cores at the same time
    config.devices.push_back({.name = "net0", .profile = DeviceConfig::Profile::mlx5});
    config.workers.push_back({.name = "w0", .core = test::allowed_cpus().front(), .idle = IdlePolicy::yield});
    config.qps_max = 64;
    config.drain_timeout = 50ms;
    config.log_level = LogLevel::error;
    Runtime runtime(config);
    AttachConfig attach;
    attach.path = std::filesystem::temp_directory_path() / ("pollcore-fuzz-" + std::to_string(::getpid()));
    AttachServer server(runtime, attach);
    const auto things = [&] {
        const ControlCounters& counters = runtime.control_counters();
        return std::array{
            counters.sessions.value(),      counters.queue_pairs.value(),    counters.shared_receive_queues.value(),
            counters.receive_pools.value(), counters.memory_regions.value(), counters.protection_domains.value()};
    };
    // Waits until the device's own domains are counted.
    while (runtime.control_counters().protection_domains.value() == 0) {
        std::this_thread::sleep_for(1ms);
    }
    const auto before = things();
    Fuzzer fuzzer(attach.path, seed);
    int connections = 0;
    for (const auto until = Clock::now() + seconds; Clock::now() < until && !::testing::Test::HasFailure();
         ++connections) {
        fuzzer.connection(300);
        const auto patience = Clock::now() + 20s;
        while (things() != before || server.counts().now != 0) {
            ASSERT_LT(Clock::now(), patience) << "something of connection " << connections << " is left";
            std::this_thread::sleep_for(1ms);
        }
    }
    EXPECT_GT(fuzzer.accepted(), static_cast<std::uint64_t>(connections)) << "next to nothing got further in";
    std::printf("%d connections, %llu requests were carried out\n", connections,
                static_cast<unsigned long long>(fuzzer.accepted()));
}

}  // namespace
}  // namespace pollcore
