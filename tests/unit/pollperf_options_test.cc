// pollperf's command line, and the CPUs on which its threads run.
#include <algorithm>
#include <iterator>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "config/cpus.hpp"
#include "pollperf/command_line.hpp"
#include "pollperf/cpu_choice.hpp"
#include "pollperf/options.hpp"
#include "pollperf/wake.hpp"

namespace pollcore::perf {
namespace {

// ---- The command line ----

CommandLine typed(const std::string& line) {
    std::istringstream text("pollperf " + line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    std::vector<const char*> argv;
    for (const std::string& word : words) {
        argv.push_back(word.c_str());
    }
    return parse_command_line(static_cast<int>(argv.size()), argv.data());
}
TestOptions parse(const std::string& line, const char* command = "lat") {
    return resolve(typed(command + (" " + line)).test.value());
}
TestOptions parse(const std::string& line, const config::Cpus& cpus) {
    return resolve(typed("lat " + line).test.value(), cpus);
}
ServeOptions parse_server(const std::string& line) {
    const TestArguments arguments = typed(line).test.value();
    EXPECT_TRUE(is_server(arguments)) << line;
    return resolve_server(arguments);
}

struct Refused {
    std::string line;
    std::string says;
    friend std::ostream& operator<<(std::ostream& out, const Refused& refused) { return out << refused.line; }
};

class PollperfRefuses : public testing::TestWithParam<Refused> {};

TEST_P(PollperfRefuses, WithTheOptionAndTheReason) {
    try {
        (void)resolve(typed(GetParam().line).test.value());
        FAIL() << GetParam().line << " was accepted";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
    } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
    }
}

const Refused kRefused[] = {
    {"lat", "say what to measure"},
    {"lat -d soft0 -o sned", "there is no operation 'sned'"},
    {"lat -d soft0 -o send,send", "'send' is there twice"},
    {"lat -d soft0 -o ,", "there is no operation"},
    {"lat -d soft0 --path indirect", "--path indirect"},
    {"lat -d soft0 --path ,", "there are direct"},
    {"lat -d soft0 -o fetch-add -s 4", "8 bytes always"},
    {"lat -d soft0 -s 0", "--size 0"},
    {"lat -d soft0 -s 4kb", "--size 4kb"},
    {"lat -d soft0 -s 1GiB", "--size 1073741824"},
    {"lat -d soft0 -a -s 4", "--all has all sizes"},
    {"lat -d soft0 -n 1", "--iters 1"},
    {"lat -d soft0 -n 100 -D 1s", "--duration says"},
    {"lat -d soft0 -D 1us", "--duration 1us"},
    {"lat -d rxe0 -R -x 1 192.0.2.1", "rdma_cm chooses the GID"},
    {"lat -d rxe0 -R -c UD 192.0.2.1", "UD has no connections"},
    {"lat -d rxe0 -R -m 1024 192.0.2.1", "rdma_cm chooses the MTU"},
    {"lat -d soft0 -m 1000", "--mtu 1000"},
    {"lat -d soft0 -x 0", "one GID"},
    {"lat -d soft0 -c XRC", "there are RC, UC and UD"},
    {"lat -d soft0 -c UC -o read", "UC does not have it"},
    {"lat -d soft0 -c UD -o write", "UD does not have it"},
    {"bw -d soft0 -c UD -s 8KiB", "at most 4096 bytes"},
    {"lat -d soft0 -p 18515", "both ends are in this process"},
    {"lat -d soft0 192.0.2.1", "a software device ends with its process"},
    {"lat -d rxe0 -p 0 192.0.2.1", "--port 0"},
    {"lat -d rxe0 -p 65536 192.0.2.1", "--port 65536"},
    {"lat -d soft0 -I 100000", "--inline_size 100000"},
    {"lat -d soft0 --timeout 10", "--timeout 10"},
    {"lat -d soft0 --timeout 1ms", "100ms"},
    {"lat -d soft0 --path direct --core 100000", "may not run on that CPU"},
    {"lat -d soft0 --path direct --worker-core 1", "has no worker"},
    {"lat -d soft0 --path direct --sessions 2", "plain verbs have none"},
    {"lat -d soft0 --path direct --flow credits", "plain verbs have none"},
    {"lat -d soft0 --path both --flow credits", "leave out paths direct and event"},
    {"lat -d soft0 --path runtime -c UD --flow credits", "UD has no flow control"},
    {"lat -d soft0 --path runtime --wait event --flow ring", "does not look at memory"},
    {"lat -d soft0 --path runtime --flow ring-a-ring", "there are off, credits, ring"},
    {"lat -d soft0 --idle sleep", "there is no way to wait called \"sleep\""},
    {"lat -d soft0 --wait [", "neither a word nor a value"},
    {"lat -d soft0 --wait event -o write", "no event tells of them"},
    {"lat -d soft0 --path event -o write", "no event tells of them"},
    {"lat -d soft0 -t 4", "lat has one operation in flight"},
    {"lat -d soft0 -l 4", "only bw and rate"},
    {"lat -d soft0 -b", "it is for bw and rate"},
    {"bw -d soft0 -t 4 -l 8", "there are only 4"},
    {"bw -d soft0 -t 4 -Q 3", "at most half of --tx-depth 4"},
    {"bw -d soft0 -q 3 --threads 2", "a multiple of the 2 threads"},
    {"bw -d soft0 --path direct --threads 200 -q 200", "spin need a CPU each"},
    {"bw -d soft0 --path runtime -q 4 --sessions 3", "divides the 4 queue pairs"},
    {"bw -d soft0 -b --rate 1k", "an open loop has one direction"},
    {"bw -d soft0 -R", "both ends are in this process"},
    {"bw -d soft0 --path direct -c UC -o write --verify", "nobody knows which ones have arrived"},
    {"lat -d rxe0 --service -x 1 192.0.2.1", "rdma_cm chooses the GID"},
    {"bw -d soft0 --rate 10x", "--rate 10x"},
    {"bw -d soft0 --rate 0", "--rate 0"},
    {"bw -d soft0 --rate 2G", "--rate 2G"},
    {"bw -d soft0 --poisson", "it is for an open loop"},
    {"bw -d soft0 --min-bw fast", "--min-bw fast"},
    {"bw -d soft0 --min-rate 1q", "--min-rate 1q"},
    {"bw -d soft0 --max-p99 5", "--max-p99"},
    {"bw -d soft0 --tolerance 5%", "it is for --baseline"},
    {"bw -d soft0 --baseline x --tolerance much", "--tolerance much"},
    {"bw -d soft0 --json a --csv a", "two outputs cannot go to one file"},
    {"lat -d soft0 --brief --path direct", "--path all"},
    {"lat -d soft0 --clients 2", "they are for a server"},
    {"lat -d rxe0 --service --loopback", "it is for a server or a client"},
    {"bw -d rxe0 --service 192.0.2.1", "use lat"},
    {"lat -d rxe0 --service -o send,read 192.0.2.1", "one operation, size and path"},
    {"lat --config loopback.toml --wait pause", "the configuration says how workers wait"},
    {"lat --config nowhere.toml", "nowhere.toml"},
    {"lat -d rxe0 --loopback 192.0.2.1", "both ends are in this process"},
};
INSTANTIATE_TEST_SUITE_P(Lines, PollperfRefuses, testing::ValuesIn(kRefused));

const Refused kRefusedServers[] = {
    {"serve", "say what to measure"},
    {"serve -d soft0", "a software device ends with its process"},
    {"serve -d rxe0 --path direct,runtime", "a server has one path"},
    {"serve -d rxe0 --attach /tmp/x --path direct", "it is for --path attached"},
    {"serve -d rxe0 --clients 0", "--clients 0"},
    {"lat -d rxe0 -e", "say --path event"},
    {"lat -d rxe0 --json x", "give them to the client"},
    {"bw -d rxe0 --min-bw 1GiB", "give them to the client"},
    {"lat -d rxe0 -p 0", "--port 0"},
};
class PollperfServerRefuses : public testing::TestWithParam<Refused> {};
TEST_P(PollperfServerRefuses, WithTheOptionAndTheReason) {
    try {
        (void)parse_server(GetParam().line);
        FAIL() << GetParam().line << " was accepted";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
    }
}
INSTANTIATE_TEST_SUITE_P(Lines, PollperfServerRefuses, testing::ValuesIn(kRefusedServers));

TEST(PollperfOptions, PerftestsLettersGiveAServerAndItsClient) {
    const ServeOptions server = parse_server("lat -d rxe0 -p 18600 -s 64 -n 5000 -I 64 -F -R");
    EXPECT_EQ(server.port, 18600);
    EXPECT_EQ(server.inline_size, 64u);
    EXPECT_FALSE(server.path.has_value());
    EXPECT_TRUE(server.once);
    EXPECT_FALSE(parse_server("serve -d rxe0").once);
    EXPECT_EQ(parse_server("serve -d rxe0 --path event").path, PathKind::event);
    const TestOptions client = parse("-d rxe0 -p 18600 -s 64 -n 5000 -I 64 -F -R 192.0.2.1");
    EXPECT_EQ(client.role, Role::client);
    EXPECT_EQ(client.address, "192.0.2.1");
    EXPECT_EQ(client.port, 18600);
    EXPECT_EQ(client.sizes, std::vector{64u});
    EXPECT_EQ(client.iterations, 5000u);
    EXPECT_TRUE(client.rdma_cm);
    EXPECT_EQ(client.paths, std::vector{PathKind::direct});
    const TestOptions bw = parse("-d rxe0 -a -q 4 -t 32 -r 64 -l 4 -Q 8 -b -m 1024 -c UC -D 2 192.0.2.1", "bw");
    EXPECT_EQ(bw.sizes.front(), 2u);
    EXPECT_EQ(bw.sizes.back(), 8u << 20);
    EXPECT_EQ(bw.queue_pairs, 4u);
    EXPECT_EQ(bw.tx_depth, 32u);
    EXPECT_EQ(bw.rx_depth, 64u);
    EXPECT_EQ(bw.post_list, 4u);
    EXPECT_EQ(bw.signal_every, 8u);
    EXPECT_TRUE(bw.bidirectional);
    EXPECT_EQ(bw.mtu, 1024u);
    EXPECT_EQ(bw.transport, QpType::uc);
    EXPECT_EQ(bw.duration, std::chrono::seconds(2));
}

TEST(PollperfOptions, WhatIsNotGivenIsAsInPerftest) {
    const TestOptions options = parse("-d rxe0 192.0.2.1");
    EXPECT_EQ(options.ops, std::vector<Op>{Op::send});
    EXPECT_EQ(options.sizes, std::vector{2u});
    EXPECT_EQ(options.iterations, 1000u);
    EXPECT_EQ(options.port, 18515);
    EXPECT_EQ(options.config.devices.front().kind, DeviceConfig::Kind::verbs);
    const TestOptions bw = parse("-d rxe0 192.0.2.1", "bw");
    EXPECT_EQ(bw.sizes, std::vector{65536u});
    EXPECT_EQ(bw.iterations, 5000u);
    EXPECT_EQ(bw.tx_depth, 128u);
    EXPECT_EQ(bw.rx_depth, 512u);
    EXPECT_EQ(parse("-d rxe0 192.0.2.1", "rate").post_list, 16u);
}

TEST(PollperfOptions, AFileGivesAllOperationsOnBothPaths) {
    const TestOptions options = parse("--config " POLLCORE_SOURCE_DIR "/config/loopback.toml");
    EXPECT_EQ(options.role, Role::both);
    EXPECT_EQ(options.ops.size(), std::size(kOps));
    EXPECT_EQ(options.paths, (std::vector{PathKind::direct, PathKind::runtime}));
    EXPECT_EQ(options.device, "soft0");
    EXPECT_EQ(options.workers, std::vector<std::string>{"worker0"});
    EXPECT_NE(options.cores.front(), options.worker_core);
    EXPECT_EQ(size_of(Op::fetch_add, 2), kAtomicSize);
    EXPECT_EQ(size_of(Op::send, 2), 2u);
    EXPECT_EQ(parse("-d soft0 -c UC -o all").ops.size(), 3u);
}

TEST(PollperfOptions, SizesHaveUnitsAndAreInOrder) {
    EXPECT_EQ(parse("-d soft0 -s 1MiB,64,4KiB,64").sizes, (std::vector{64u, 4096u, 1u << 20}));
}

TEST(PollperfOptions, LimitsHaveUnits) {
    const TestOptions options =
        parse("-d soft0 --min-bw 80Gb --min-rate 1.5M --max-p99 10us --rate 100k --poisson", "bw");
    EXPECT_DOUBLE_EQ(options.bytes_per_s_least.value(), 10e9);
    EXPECT_DOUBLE_EQ(options.operations_per_s_least.value(), 1.5e6);
    EXPECT_DOUBLE_EQ(options.p99_ns_most.value(), 10e3);
    EXPECT_DOUBLE_EQ(options.arrivals.value().per_s, 1e5);
    EXPECT_TRUE(options.arrivals->poisson);
    EXPECT_DOUBLE_EQ(parse("-d soft0 --min-bw 2MiB").bytes_per_s_least.value(), 2 << 20);
}

TEST(PollperfOptions, LongMessagesHaveFewerBuffersAndIterations) {
    const TestOptions options = parse("-d soft0 -s 8MiB --verify", "bw");
    EXPECT_LT(iterations_of(options, 8u << 20), options.iterations);
    EXPECT_GE(iterations_of(options, 8u << 20), std::uint64_t{10} * options.rounds);
    const EndLayout layout = layout_of(options);
    EXPECT_LE(2 * layout.bytes(), 3 * kBufferBytesMost);
    EXPECT_GE(layout.receive_slots, 2u);
    EXPECT_EQ(iterations_of(parse("-d soft0 -s 8MiB -n 100000", "bw"), 8u << 20), 100000u);
    // A sweep has as many receives for short messages as a run of these alone; long ones share buffers.
    const EndLayout sweep = layout_of(parse("-d soft0 -a -o send", "bw"));
    EXPECT_EQ(sweep.receive_slots, 512u);
    EXPECT_LT(sweep.receive_buffers, 512u);
    // Each operation in flight has a buffer of its own only if its bytes are checked.
    EXPECT_EQ(layout_of(parse("-d soft0 -s 64", "bw")).out_slots, 1u);
    EXPECT_EQ(layout_of(parse("-d soft0 -s 64 --verify", "bw")).out_slots, 128u);
}

TEST(PollperfOptions, PathsWaitAsTheyCan) {
    const TestOptions options = parse("-d soft0 --path direct,event,runtime -o send");
    EXPECT_EQ(options.wait_on(PathKind::direct), Waiting::spin);
    EXPECT_EQ(options.wait_on(PathKind::event), Waiting::sleep);
    EXPECT_EQ(options.wait_on(PathKind::runtime), Waiting::spin);
    EXPECT_EQ(parse("-d soft0 --path both --wait event -o send").paths,
              (std::vector{PathKind::event, PathKind::runtime}));
}

// ---- CPUs ----

const config::Cpus kOneCpu{{5}, {5}};
const config::Cpus kTwoCpus{{0, 1}, {0, 1}};

TEST(PollperfOnOneCpu, ThreadAndWorkerTakeTurnsUnlessTheyAreToldOtherwise) {
    for (const char* line :
         {"--config " POLLCORE_SOURCE_DIR "/config/loopback.toml", "-d soft0", "-d soft0 --path runtime",
          "-d rxe0 --loopback --path runtime", "-d rxe0 --path runtime 192.0.2.1"}) {
        const TestOptions options = parse(line, kOneCpu);
        EXPECT_EQ(options.wait, Waiting::yield) << line;
        EXPECT_EQ(options.config.workers.front().idle, IdleLadder(IdlePolicy::yield)) << line;
        EXPECT_EQ(options.cores.front(), 5u) << line;
        EXPECT_EQ(options.worker_core, 5u) << line;
        EXPECT_TRUE(options.one_cpu()) << line;
    }
    EXPECT_EQ(parse("-d soft0 --path direct --wait spin", kOneCpu).wait, Waiting::spin);
    EXPECT_THROW((void)parse("-d soft0 --path runtime --wait spin", kOneCpu), UsageError);
    EXPECT_EQ(parse("-d soft0 --path runtime", kTwoCpus).wait, Waiting::spin);
    EXPECT_EQ(parse("-d soft0 --path runtime", kTwoCpus).config.workers.front().idle, IdleLadder(IdlePolicy::spin));
}

TEST(PollperfOnOneCpu, FewerIterationsAreUsualOnASoftwareDevice) {
    EXPECT_LT(parse("-d soft0", kOneCpu).iterations, parse("-d soft0", kTwoCpus).iterations);
    EXPECT_EQ(parse("-d soft0 -n 300000", kOneCpu).iterations, 300000u);
    EXPECT_EQ(parse("-d rxe0 --loopback", kOneCpu).iterations, parse("-d rxe0 --loopback", kTwoCpus).iterations);
}

TEST(PollperfOnOneCpu, WakeSaysThatItTakesTwo) {
    const WakeArguments arguments = typed("wake").wake.value();
    EXPECT_NE(resolve(arguments, kTwoCpus).core, resolve(arguments, kTwoCpus).worker_core);
    try {
        (void)resolve(arguments, kOneCpu);
        FAIL() << "it was accepted";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("on CPU 5 only"), std::string::npos) << error.what();
    }
}

TEST(PollperfPlacement, ClientAndServerOfAMachineGetOutOfEachOthersWay) {
    const std::set<std::uint32_t> allowed{0, 1, 2, 3};
    const Placement client = place({.role = Role::client, .needs_worker = true, .allowed = allowed});
    const Placement server = place({.role = Role::server, .needs_worker = true, .allowed = allowed});
    EXPECT_EQ(std::set({client.core, client.worker, server.core, server.worker}).size(), 4u);
    // With only two CPUs, the two measuring threads are on different CPUs, and so are the two workers.
    const Placement small_client = place({.role = Role::client, .needs_worker = true, .allowed = {0, 1}});
    const Placement small_server = place({.role = Role::server, .needs_worker = true, .allowed = {0, 1}});
    EXPECT_NE(small_client.core, small_server.core);
    EXPECT_NE(small_client.worker, small_server.worker);
}

TEST(PollperfPlacement, CpusToWhichTheProcessIsBoundComeFirst) {
    PlacementWish wish{.role = Role::client, .needs_worker = true, .allowed = {0, 1, 2, 3}, .bound = {2, 3}};
    EXPECT_EQ(place(wish).core, 2u);
    EXPECT_EQ(place(wish).worker, 3u);
    wish.role = Role::server;
    EXPECT_EQ(place(wish).core, 3u);
    EXPECT_EQ(place(wish).worker, 2u);
    wish.bound = {1};
    EXPECT_EQ(place(wish).core, 1u);
    EXPECT_EQ(place(wish).worker, 3u) << "a worker needs a CPU of its own, so it leaves what the process is bound to";
    wish.core = 0;
    EXPECT_EQ(place(wish).core, 0u) << "--core is more than the binding";
    EXPECT_EQ(more_cpus({.first = 2, .wanted = 3, .allowed = {0, 1, 2, 3}, .bound = {2, 3}}),
              (std::vector{2u, 3u, 0u}));
}

TEST(PollperfPlacement, TheApplicationIsOnNoWorkersCpu) {
    const Placement placement = place({.needs_worker = true, .allowed = {0, 1, 2}, .workers = {0, 1}});
    EXPECT_EQ(placement.core, 2u);
    EXPECT_EQ(placement.worker, 0u);
    EXPECT_EQ(place({.needs_worker = true, .allowed = {0, 1}, .core = 1}).worker, 0u);
    EXPECT_EQ(place({.needs_worker = true, .allowed = {0, 1}, .worker_core = 0}).core, 1u);
}

TEST(PollperfPlacement, SeveralThreadsHaveACpuEachUnlessTheyGiveItUp) {
    const MoreCpus wish{
        .first = 0, .wanted = 3, .allowed = {0, 1, 2, 3}, .taken = {3}, .option = "--core", .what = "threads"};
    EXPECT_EQ(more_cpus(wish), (std::vector{0u, 1u, 2u}));
    MoreCpus many = wish;
    many.wanted = 4;
    EXPECT_THROW((void)more_cpus(many), UsageError);
    many.may_share = true;
    EXPECT_EQ(more_cpus(many), (std::vector{0u, 1u, 2u, 1u}));
    MoreCpus named = wish;
    named.named = {0, 2, 1};
    EXPECT_EQ(more_cpus(named), (std::vector{0u, 2u, 1u}));
    named.named = {0, 2, 2};
    EXPECT_THROW((void)more_cpus(named), UsageError);
    named.named = {0, 2};
    EXPECT_THROW((void)more_cpus(named), UsageError);
    named.named = {0, 1, 9};
    EXPECT_THROW((void)more_cpus(named), UsageError);
}

TEST(PollperfPlacement, WhatCannotBeGrantedIsRefused) {
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {3}}), UsageError);
    const Placement turns = place({.needs_worker = true, .takes_turns = true, .allowed = {3}, .workers = {3}});
    EXPECT_EQ(turns.core, 3u);
    EXPECT_EQ(turns.worker, 3u);
    EXPECT_NE(place({.needs_worker = true, .takes_turns = true, .allowed = {2, 3}}).worker, 2u);
    EXPECT_THROW((void)place({.needs_worker = true, .takes_turns = true, .allowed = {3}, .core = 2}), UsageError);
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {0, 1}, .workers = {0, 1}}), UsageError);
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {0, 1}, .workers = {1}, .core = 1}), UsageError);
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {0, 1}, .core = 1, .worker_core = 1}), UsageError);
    EXPECT_EQ(place({.needs_worker = false, .allowed = {3}}).core, 3u);
}

}  // namespace
}  // namespace pollcore::perf
