// pollperf's figures, its command line, and what its two processes tell each other.
#include <iterator>
#include <numeric>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/command_line.hpp"
#include "pollperf/options.hpp"
#include "pollperf/placement.hpp"
#include "pollperf/rendezvous.hpp"
#include "pollperf/statistics.hpp"

namespace pollcore::perf {
namespace {

// ---- Statistics ----

std::vector<std::uint64_t> one_to(std::uint64_t n) {
    std::vector<std::uint64_t> samples(n);
    std::iota(samples.begin(), samples.end(), 1);
    return samples;
}

TEST(PollperfStatistics, PercentilesAreSamplesThatWereTaken) {
    const auto samples = one_to(10000);
    EXPECT_EQ(percentile(samples, 9900), 9900u);
    EXPECT_EQ(percentile(samples, 9990), 9990u);
    EXPECT_EQ(percentile(samples, 9999), 9999u);
    EXPECT_EQ(percentile(samples, 10000), 10000u);
}

TEST(PollperfStatistics, PercentilesOfFewSamplesAreTheLargest) {
    for (const std::uint64_t n : {1u, 2u, 10u, 99u}) {
        EXPECT_EQ(percentile(one_to(n), 9900), n) << n;
    }
    EXPECT_EQ(percentile(one_to(100), 9900), 99u);
    EXPECT_EQ(percentile(one_to(101), 9900), 100u);
    EXPECT_EQ(percentile(one_to(1000), 9999), 1000u);
}

TEST(PollperfStatistics, TheMedianOfAnEvenNumberIsBetweenTheMiddleTwo) {
    EXPECT_DOUBLE_EQ(median(std::vector<std::uint64_t>{4, 8}), 6);
    EXPECT_DOUBLE_EQ(median(std::vector<std::uint64_t>{1, 4, 8}), 4);
    EXPECT_DOUBLE_EQ(median(std::vector<std::uint64_t>{7}), 7);
}

TEST(PollperfStatistics, ASummaryIsInNanosecondsAndDoesNotNeedOrder) {
    const Summary summary = summarize({4, 2, 4, 4, 5, 5, 7, 9}, 0.5);
    EXPECT_EQ(summary.count, 8u);
    EXPECT_DOUBLE_EQ(summary.min, 1);
    EXPECT_DOUBLE_EQ(summary.max, 4.5);
    EXPECT_DOUBLE_EQ(summary.typical, 2.25);
    EXPECT_DOUBLE_EQ(summary.average, 2.5);
    EXPECT_DOUBLE_EQ(summary.stdev, 1);
    EXPECT_DOUBLE_EQ(summary.p99, 4.5);
}

TEST(PollperfStatistics, CloseSamplesFarFromZeroKeepTheirDeviation) {
    const std::uint64_t far = 1ull << 50;
    EXPECT_DOUBLE_EQ(summarize({far, far + 2}, 1).stdev, 1);
}

TEST(PollperfStatistics, OutliersMoveTheAverageAndNotTheTypical) {
    std::vector<std::uint64_t> samples(1000, 100);
    samples[500] = 1'000'000;
    const Summary summary = summarize(samples, 1);
    EXPECT_DOUBLE_EQ(summary.typical, 100);
    EXPECT_DOUBLE_EQ(summary.p99, 100);
    EXPECT_DOUBLE_EQ(summary.p999, 100);
    EXPECT_DOUBLE_EQ(summary.p9999, 1'000'000);
    EXPECT_GT(summary.average, 1000);
}

TEST(PollperfStatistics, NoSamplesAreNoFigures) {
    EXPECT_EQ(summarize({}, 1).count, 0u);
}

// ---- The command line ----

LatOptions parse(const std::string& line) {
    std::istringstream text("pollperf lat " + line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    std::vector<const char*> argv;
    for (const std::string& word : words) {
        argv.push_back(word.c_str());
    }
    const CommandLine parsed = parse_command_line(static_cast<int>(argv.size()), argv.data());
    return resolve(parsed.lat.value());
}

struct Refused {
    std::string line;
    std::string says;
    friend std::ostream& operator<<(std::ostream& out, const Refused& refused) { return out << refused.line; }
};

class PollperfRefuses : public testing::TestWithParam<Refused> {};

TEST_P(PollperfRefuses, WithTheOptionAndTheReason) {
    try {
        (void)parse(GetParam().line);
        FAIL() << GetParam().line << " was accepted";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
    } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
    }
}

const Refused kRefused[] = {
    {"", "say what to measure"},
    {"-d soft0 -o sned", "there is no operation 'sned'"},
    {"-d soft0 -o send,send", "'send' is there twice"},
    {"-d soft0 -o ,", "there is no operation"},
    {"-d rxe0 -o send,write", "one operation at a time"},
    {"-d soft0 --path indirect", "--path indirect"},
    {"-d rxe0 --path both", "one path at a time"},
    {"-d soft0 -o fetch-add -s 4", "8 bytes always"},
    {"-d soft0 -s 0", "--size 0"},
    {"-d soft0 -n 1", "--iters 1"},
    {"-d rxe0 -x 1", "rdma_cm chooses the GID"},
    {"-d soft0 -x 0", "one GID"},
    {"-d rxe0 --rounds 4", "--rounds"},
    {"-d soft0 -p 18515", "both ends are in this one"},
    {"-d rxe0 -p 0", "--port 0"},
    {"-d rxe0 -p 65536", "--port 65536"},
    {"-d soft0 -I 100000", "--inline_size 100000"},
    {"-d soft0 --timeout 10", "--timeout 10"},
    {"-d soft0 --timeout 1ms", "100ms"},
    {"-d soft0 --path direct --core 100000", "may not run on that CPU"},
    {"-d soft0 --path direct --worker-core 1", "has no worker"},
    {"-d soft0 --path direct --flow credits", "plain verbs have none"},
    {"-d soft0 --path runtime --wait event --flow ring", "does not look at memory"},
    {"-d soft0 --path runtime --flow ring-a-ring", "there are off, credits and ring"},
    {"-d soft0 --idle sleep", "there is no way to wait called \"sleep\""},
    {"-d soft0 --wait [", "neither a word nor a value"},
    {"-d soft0 --wait event -o write", "no event tells of them"},
    {"--config loopback.toml --wait pause", "the configuration says how workers wait"},
    {"--config nowhere.toml", "nowhere.toml"},
    {"-d rxe0 --loopback 192.0.2.1", "both ends are in this process"},
};
INSTANTIATE_TEST_SUITE_P(Lines, PollperfRefuses, testing::ValuesIn(kRefused));

TEST(PollperfOptions, PerftestsLettersGiveAServerAndItsClient) {
    const LatOptions server = parse("-d rxe0 -p 18600 -s 64 -n 5000 -I 64 -F -R");
    EXPECT_EQ(server.role, Role::server);
    EXPECT_EQ(server.port, 18600);
    EXPECT_EQ(server.size, 64u);
    EXPECT_EQ(server.iterations, 5000u);
    EXPECT_EQ(server.inline_size, 64u);
    EXPECT_TRUE(server.direct);
    EXPECT_FALSE(server.runtime);
    const LatOptions client = parse("-d rxe0 -p 18600 -s 64 -n 5000 192.0.2.1");
    EXPECT_EQ(client.role, Role::client);
    EXPECT_EQ(client.address, "192.0.2.1:18600");
    EXPECT_EQ(client.warmup, server.warmup);
    EXPECT_EQ(parse("-d rxe0 fe80::1%eth0").address, "[fe80::1%eth0]:18515");
}

TEST(PollperfOptions, WhatIsNotGivenIsAsInPerftest) {
    const LatOptions options = parse("-d rxe0");
    EXPECT_EQ(options.ops, std::vector<Op>{Op::send});
    EXPECT_EQ(options.size, 2u);
    EXPECT_EQ(options.iterations, 1000u);
    EXPECT_EQ(options.port, 18515);
    EXPECT_EQ(options.config.devices.front().kind, DeviceConfig::Kind::verbs);
}

TEST(PollperfOptions, AFileGivesAllOperationsOnBothPaths) {
    const LatOptions options = parse("--config " POLLCORE_SOURCE_DIR "/config/loopback.toml");
    EXPECT_EQ(options.role, Role::both);
    EXPECT_EQ(options.ops.size(), std::size(kOps));
    EXPECT_TRUE(options.direct);
    EXPECT_TRUE(options.runtime);
    EXPECT_EQ(options.device, "soft0");
    EXPECT_EQ(options.worker, "worker0");
    EXPECT_NE(options.core, options.worker_core);
    EXPECT_EQ(size_of(options, Op::fetch_add), kAtomicSize);
    EXPECT_EQ(size_of(options, Op::send), 2u);
}

// ---- CPUs ----

TEST(PollperfPlacement, ClientAndServerOfAMachineGetOutOfEachOthersWay) {
    const std::set<std::uint32_t> allowed{0, 1, 2, 3};
    const Placement client = place({.role = Role::client, .needs_worker = true, .allowed = allowed});
    const Placement server = place({.role = Role::server, .needs_worker = true, .allowed = allowed});
    EXPECT_EQ(std::set({client.core, client.worker, server.core, server.worker}).size(), 4u);
    // On two CPUs the threads that measure are apart at least, and the workers.
    const Placement small_client = place({.role = Role::client, .needs_worker = true, .allowed = {0, 1}});
    const Placement small_server = place({.role = Role::server, .needs_worker = true, .allowed = {0, 1}});
    EXPECT_NE(small_client.core, small_server.core);
    EXPECT_NE(small_client.worker, small_server.worker);
}

TEST(PollperfPlacement, TheApplicationIsOnNoWorkersCpu) {
    const Placement placement = place({.needs_worker = true, .allowed = {0, 1, 2}, .workers = {0, 1}});
    EXPECT_EQ(placement.core, 2u);
    EXPECT_EQ(placement.worker, 0u);
    EXPECT_EQ(place({.needs_worker = true, .allowed = {0, 1}, .core = 1}).worker, 0u);
    EXPECT_EQ(place({.needs_worker = true, .allowed = {0, 1}, .worker_core = 0}).core, 1u);
}

TEST(PollperfPlacement, WhatCannotBeGrantedIsRefused) {
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {3}}), UsageError);
    const Placement turns = place({.needs_worker = true, .takes_turns = true, .allowed = {3}, .workers = {3}});
    EXPECT_EQ(turns.core, 3u);
    EXPECT_EQ(turns.worker, 3u);
    EXPECT_NE(place({.needs_worker = true, .takes_turns = true, .allowed = {2, 3}}).worker, 2u);
    EXPECT_THROW((void)place({.needs_worker = true, .takes_turns = true, .allowed = {3}, .core = 2}), UsageError);
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {0, 1}, .workers = {0, 1}}), UsageError);
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {0, 1}, .workers = {1}, .core = 1}),
                 UsageError);
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {0, 1}, .core = 1, .worker_core = 1}),
                 UsageError);
    EXPECT_EQ(place({.needs_worker = false, .allowed = {3}}).core, 3u);
}

// ---- Private data ----

const LatRequest kRequest{.op = Op::write,
                          .path = PathKind::runtime,
                          .verify = true,
                          .size = 64,
                          .iterations = 1000,
                          .warmup = 100,
                          .memory = {0x123456789abcdef0, 0xfedcba98}};

TEST(PollperfRendezvous, ARequestArrivesAsItWasSentWithPaddingBehind) {
    auto bytes = kRequest.encode();
    EXPECT_EQ(bytes.size(), LatRequest::kWireLength);
    bytes.resize(bytes.size() + 8);
    const auto request = LatRequest::decode(bytes);
    ASSERT_TRUE(request);
    EXPECT_EQ(mismatch(kRequest, *request), "");
    EXPECT_EQ(request->path, kRequest.path);
    EXPECT_EQ(request->memory.addr, kRequest.memory.addr);
    EXPECT_EQ(request->memory.rkey, kRequest.memory.rkey);
}

TEST(PollperfRendezvous, WhatIsNotAllThereOrNotKnownIsNoRequest) {
    const auto bytes = kRequest.encode();
    for (std::size_t n = 0; n < bytes.size(); ++n) {
        EXPECT_FALSE(LatRequest::decode(std::span(bytes).first(n))) << n;
    }
    // Magic, version, length, op, path, verify, reserved.
    for (const std::size_t at : {0u, 4u, 6u, 8u, 9u, 10u, 11u}) {
        auto changed = bytes;
        changed[at] = std::byte{0x77};
        EXPECT_FALSE(LatRequest::decode(changed)) << at;
    }
}

TEST(PollperfRendezvous, AMismatchNamesTheOptionAndBothValues) {
    LatRequest other = kRequest;
    other.size = 128;
    EXPECT_EQ(mismatch(kRequest, other), "client has -s 128, server has -s 64");
    other = kRequest;
    other.op = Op::read;
    EXPECT_EQ(mismatch(kRequest, other), "client has -o read, server has -o write");
    other = kRequest;
    other.path = PathKind::direct;  // each end's own affair
    EXPECT_EQ(mismatch(kRequest, other), "");
}

TEST(PollperfRendezvous, PeersAreKnownByTheirAnswers) {
    const Workload write{.op = Op::write, .size = 64};
    const Workload send{.op = Op::send, .size = 64};
    const auto server = LatAnswer{.path = PathKind::direct, .memory = {1, 2}}.encode();
    EXPECT_TRUE(recognize_peer(server, write).answers);
    EXPECT_TRUE(recognize_peer(server, write).ends_connection);
    const auto memory = MemoryOffer{.addr = 4096, .rkey = 7, .size = 64}.encode();
    EXPECT_FALSE(recognize_peer(memory, write).answers);
    EXPECT_EQ(recognize_peer(memory, write).memory.addr, 4096u);
    EXPECT_THROW((void)recognize_peer(memory, send), MeasurementError);
    EXPECT_THROW((void)recognize_peer(memory, {.op = Op::read, .size = 65}), MeasurementError);
    const auto echo = EchoOffer{.message_size_max = 64, .depth = 8}.encode();
    EXPECT_TRUE(recognize_peer(echo, send).answers);
    EXPECT_THROW((void)recognize_peer(echo, {.op = Op::send, .size = 65}), MeasurementError);
    EXPECT_THROW((void)recognize_peer(echo, write), MeasurementError);
    EXPECT_TRUE(recognize_peer({}, send).answers);
    EXPECT_THROW((void)recognize_peer({}, write), MeasurementError);
}

}  // namespace
}  // namespace pollcore::perf
