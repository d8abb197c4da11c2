// Tests the sample configurations, and that a printed configuration is parsed into the same configuration again.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "config/schema.hpp"
#include "config/validation.hpp"
#include "config_texts.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/config.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;
using config_texts::kCpus;
using config_texts::message_of;
using config_texts::read_file;
using config_texts::sample;
using config_texts::small_config;
using config_texts::small_service;

// ---- The samples ----

// Returns the sample without its prose, and with its commented-out examples ("#key = ...", no blank after '#') switched
// on.
std::string with_examples(const std::string& text) {
    std::istringstream lines(text);
    std::string out;
    for (std::string line; std::getline(lines, line);) {
        if (line.size() > 1 && line[0] == '#' && line[1] != ' ' && line[1] != '-') {
            out += line.substr(1) + '\n';
        } else if (!line.empty() && line[0] != '#') {
            out += line + '\n';
        }
    }
    return out;
}

// The sample's example has a worker on core 2.
const config::Cpus kFourCpus{{0, 1, 2, 3}, {0, 1, 2, 3}};
const config::Cpus kTwoCpus{{0, 1}, {0, 1}};

TEST(Sample, of_pollcored_is_accepted_on_two_cpus) {
    const Config parsed = config::parse(sample("pollcored.toml"), "pollcored.toml", kTwoCpus);
    EXPECT_EQ(parsed.devices.size(), 1u);
    EXPECT_EQ(parsed.workers.size(), 1u);
    ASSERT_EQ(parsed.services.size(), 1u);
    EXPECT_EQ(parsed.services[0].kind, ServiceConfig::Kind::echo);
}

TEST(Sample, of_pollcored_shows_the_defaults) {
    const Config parsed = config::parse(sample("pollcored.toml"), "pollcored.toml", kTwoCpus);
    Config defaults = small_config("soft0", "worker0");
    defaults.services.push_back({.name = "echo0", .device = "soft0", .worker = "worker0", .address = "echo0"});
    defaults.attach.path = kAttachPath;  // without this, nobody could attach to a freshly installed daemon
    defaults.control.path = "/run/pollcore/control.sock";
    EXPECT_EQ(parsed, defaults);
}

TEST(Sample, of_pollcored_has_examples_that_are_accepted) {
    const Config parsed = config::parse(with_examples(sample("pollcored.toml")), "pollcored.toml", kFourCpus);
    EXPECT_EQ(parsed.devices.size(), 2u);
    EXPECT_EQ(parsed.workers.size(), 2u);
    EXPECT_EQ(parsed.services.size(), 2u);
    EXPECT_EQ(parsed.devices[1].kind, DeviceConfig::Kind::verbs);
    EXPECT_EQ(parsed.services[1].size, 16u << 20);
}

// Collects all keys of the schema, such as "[runtime] qps_max".
struct AllKeys {
    std::vector<std::pair<std::string, std::string>> keys;

    template <class Object>
    void table(const char* name, const Object& object) {
        const config::Cpus none;
        config::each_field(object, none,
                           [&](const config::Key& key, auto, const auto&) { keys.emplace_back(name, key.name); });
    }
    template <class Object>
    void list(const char* name, const std::vector<Object>&) {
        table(name, Object());
    }
};

TEST(Sample, of_pollcored_documents_every_key) {
    AllKeys all;
    const Config none;
    config::each_section(none, all);
    EXPECT_GE(all.keys.size(), 25u);
    const std::string text = '\n' + sample("pollcored.toml");
    for (const auto& [section, key] : all.keys) {
        bool found = false;
        for (std::size_t at = 0; !found && (at = text.find('[' + section + ']', at)) != std::string::npos; ++at) {
            // The part about this section ends at the next table with another name.
            std::size_t end = at;
            do {
                end = text.find("\n[", end + 1);
            } while (end != std::string::npos && text.substr(end + 1).starts_with("[[" + section + "]]"));
            const std::string part = text.substr(at, end == std::string::npos ? end : end - at);
            const std::size_t plain = part.find('\n' + key + " = ");
            const std::size_t example = part.find("\n#" + key + " = ");
            const std::size_t line = plain != std::string::npos ? plain : example;
            // The key is documented if a line of prose stands before it in the table. A table that is shown a second
            // time has no prose.
            found = line != std::string::npos && part.rfind("\n# ", line) != std::string::npos;
        }
        EXPECT_TRUE(found) << '[' << section << "] " << key;
    }
}

TEST(Sample, for_the_loopback_is_accepted_on_two_cpus) {
    const Config parsed = config::parse(sample("loopback.toml"), "loopback.toml", kTwoCpus);
    ASSERT_EQ(parsed.devices.size(), 1u);
    EXPECT_EQ(parsed.devices[0].name, "soft0");
    EXPECT_EQ(parsed.devices[0].kind, DeviceConfig::Kind::soft);
    ASSERT_EQ(parsed.workers.size(), 1u);
    EXPECT_EQ(parsed.workers[0].core, 1u);
    EXPECT_EQ(parsed.workers[0].idle, IdleLadder(IdlePolicy::spin));
    EXPECT_TRUE(parsed.services.empty());
}

TEST(Sample, that_is_minimal_has_ten_lines_and_is_accepted) {
    const std::string text = sample("minimal.toml");
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
    const Config parsed = config::parse(text, "minimal.toml", kTwoCpus);
    ASSERT_EQ(parsed.devices.size(), 1u);
    EXPECT_EQ(parsed.devices[0].kind, DeviceConfig::Kind::verbs);
    ASSERT_EQ(parsed.workers.size(), 1u);
    EXPECT_FALSE(parsed.attach.path.empty());
}

TEST(Sample, for_the_loopback_loads_from_its_file) {
    EXPECT_EQ(load_config(POLLCORE_SOURCE_DIR "/config/loopback.toml").workers.size(), 1u);
}

// If `only` is 0, the machine has only CPU 0. If it is 6, the machine has CPU 0 as well, but the process may use only
// CPU 6.
TEST(Sample, takes_turns_on_a_machine_with_one_cpu) {
    for (const std::uint32_t only : {0u, 6u}) {
        const config::Cpus one{{0, only}, {only}};
        for (const char* name : {"pollcored.toml", "loopback.toml"}) {
            const Config parsed = config::parse(sample(name), name, one);
            ASSERT_EQ(parsed.workers.size(), 1u) << name;
            EXPECT_EQ(parsed.workers[0].core, only) << name;
            EXPECT_EQ(parsed.workers[0].idle, IdleLadder(IdlePolicy::yield)) << name;
        }
    }
}

// ---- Printing ----

TEST(PrintConfig, marks_what_stands_at_its_default) {
    Config built = small_config();
    built.qps_max = 64;
    built.share_cores = true;
    built.drain_timeout = 1500ms;
    built.services.push_back(small_service("s", "a"));
    built.services[0].kind = ServiceConfig::Kind::memory;
    built.services[0].size = 3u << 20;
    EXPECT_EQ(print_config(built), R"([runtime]
qps_max = 64
share_cores = true
lock_directory = ""  # default
drain_timeout = "1500ms"
hang_limit = "60s"  # default
log_level = "info"  # default

[memory]
hugepages = "prefer"  # default
size = "64MiB"  # default

[attach]
path = ""  # default

[control]
path = ""  # default

[statistics]
segment = "auto"  # default
name = ""  # default
group = ""  # default
stall_threshold = "1ms"  # default
telemetry = false  # default

[[device]]
name = "d"
kind = "soft"
profile = "standard"  # default

[[worker]]
name = "w"
core = 1
idle = "spin"
submit_burst = 32  # default
complete_burst = 32  # default
qp_burst = 32  # default
cq_depth = 4096  # default
poll = "auto"  # default

[[service]]
name = "s"
kind = "memory"
device = "d"
worker = "w"
address = "a"
size = "3MiB"
connections_max = 16  # default
)");
}

TEST(PrintConfig, is_read_back_as_the_same) {
    for (const std::string& text :
         {sample("pollcored.toml"), sample("loopback.toml"), with_examples(sample("pollcored.toml"))}) {
        const Config parsed = config::parse(text, "f.toml", kFourCpus);
        EXPECT_EQ(config::parse(print_config(parsed), "printed", kFourCpus), parsed);
    }
}

// Makes random valid configurations. Their values come from the ends of each range and from in between.
class RandomConfig {
public:
    explicit RandomConfig(std::uint64_t seed) : random_(seed) {}

    Config make() {
        Config made;
        made.qps_max = 1u << number(8, 16);
        made.share_cores = number(0, 1) != 0;
        made.lock_directory = pick({"", "/run/lock", "/tmp/a b", "/tmp/\"quoted\" \\ back",
                                    "/tmp/gr\xc3\xbc\xc3\x9f-\xe2\x82\xac-\xf0\x9f\x90\x9f"});
        made.drain_timeout = std::chrono::milliseconds(pick({1, 999, 1000, 1001, 60'000, 600'000}));
        made.hang_limit = std::chrono::milliseconds(pick({1, 1500, 60'000, 600'000}));
        made.log_level = static_cast<LogLevel>(number(0, 3));
        made.memory.hugepages = static_cast<MemoryConfig::Hugepages>(number(0, 2));
        made.statistics.segment = static_cast<StatisticsConfig::Segment>(number(0, 2));
        made.statistics.name = pick({"", "trading-1"});
        made.statistics.group = pick({"", "root", "123456"});
        made.statistics.telemetry = made.statistics.segment != StatisticsConfig::Segment::off && number(0, 1) != 0;
        made.memory.size = number(8, 1u << 19) * (2ull << 20);
        if (number(0, 1) != 0) {
            made.control.path = pick({"/run/c.sock", "/tmp/c d"});
            made.control.group = pick({"", "root", "123456"});
        }
        if (number(0, 1) != 0) {
            made.attach.path = pick({"/run/p.sock", "/tmp/a b", "/tmp/\"quoted\" \\ back"});
            made.attach.owner = pick({"", "root", "0", "4294967294"});
            made.attach.group = pick({"", "root", "123456"});
            made.attach.mode = static_cast<std::uint32_t>(number(0, 0777)) | 0020;
            made.attach.users = pick<std::vector<std::string>>({{}, {"root"}, {"root", "1000"}});
            made.attach.groups = pick<std::vector<std::string>>({{}, {"root"}});
            made.attach.clients_max = static_cast<std::uint32_t>(number(1, kAttachedMax));
            made.attach.own_memory.all = number(0, 1) == 1;
            if (!made.attach.own_memory.all && number(0, 1) == 1) {
                made.attach.own_memory.users = {"root", "65534"};
            }
            made.attach.sessions_max = static_cast<std::uint32_t>(number(1, kSessionsPerWorkerMax));
            made.attach.queue_pairs_max = static_cast<std::uint32_t>(number(1, kQpsMax));
            made.attach.work_requests_max = pick<std::uint64_t>({1, 65536, 1ull << 32});
            made.attach.registered_max = pick<std::uint64_t>({4096, 1ull << 30, 1ull << 48});
        }
        for (std::uint64_t i = number(1, kDevicesMax); i > 0; --i) {
            made.devices.push_back(device());
        }
        const std::uint64_t workers = number(1, kWorkersMax);
        for (std::uint32_t i = 0; i < workers; ++i) {
            made.workers.push_back(worker(i));
        }
        for (std::uint64_t i = number(0, kServicesMax); i > 0; --i) {
            made.services.push_back(service(made));
        }
        return made;
    }

    static config::Cpus cpus() {
        config::Cpus result;
        for (std::uint32_t i = 0; i < kWorkersMax; ++i) {
            result.online.insert(i);
        }
        result.allowed = result.online;
        return result;
    }

private:
    std::uint64_t number(std::uint64_t min, std::uint64_t max) {
        return std::uniform_int_distribution<std::uint64_t>(min, max)(random_);
    }
    template <class T>
    T pick(std::initializer_list<T> values) {
        return *(values.begin() + number(0, values.size() - 1));
    }
    template <class T>
    const T& pick(const std::vector<T>& values) {
        return values[number(0, values.size() - 1)];
    }
    std::uint32_t number32(std::uint32_t min, std::uint32_t max) {
        return static_cast<std::uint32_t>(number(min, max));
    }
    // Returns a different word at each call.
    std::string word() {
        constexpr std::string_view kCharacters = "abcXYZ059_-.";
        std::string made = std::to_string(++words_) + "-";
        for (std::uint64_t i = number(0, kNameLengthMax - 12); i > 0; --i) {
            made += kCharacters[number(0, kCharacters.size() - 1)];
        }
        return made;
    }
    DeviceConfig device() {
        DeviceConfig made;
        made.name = word();
        made.profile = static_cast<DeviceConfig::Profile>(number(0, 2));
        if (number(0, 1) == 1) {
            made.profile = DeviceConfig::Profile::standard;
            made.kind = DeviceConfig::Kind::verbs;
            made.verbs_name = number(0, 1) == 1 ? word() : "";
            made.port = static_cast<std::uint8_t>(number(1, 255));
            made.gid = pick({"", "192.0.2.1", "fe80::1"});
        }
        return made;
    }
    IdleLadder ladder() {
        IdleLadder made;
        made.rungs.clear();
        for (const IdlePolicy policy : {IdlePolicy::yield, IdlePolicy::spin, IdlePolicy::pause, IdlePolicy::event}) {
            if (number(0, 1) == 1 || (policy == IdlePolicy::event && made.rungs.empty())) {
                made.rungs.push_back({policy, std::chrono::nanoseconds(number(1, 3'600'000'000'000))});
            }
        }
        made.rungs.back().time = {};
        return made;
    }
    WorkerConfig worker(std::uint32_t core) {
        WorkerConfig made;
        made.name = word();
        made.core = core;
        made.idle = ladder();
        if (made.idle.has(IdlePolicy::event)) {
            made.wake_on = static_cast<WakeOn>(number(0, 1));
            made.comp_vector = number(0, 1) == 1 ? std::optional(number32(0, 65535)) : std::nullopt;
            made.moderation_period = std::chrono::microseconds(number(1, 65535));
            made.moderation_count = number32(1, 65535);
        }
        made.submit_burst = number32(1, kBurstMax);
        made.complete_burst = number32(1, kBurstMax);
        made.qp_burst = number32(1, kBurstMax);
        made.cq_depth = 1u << number(4, 22);
        made.poll = static_cast<PollVerbs>(number(0, 2));
        return made;
    }
    // At most this many services, so that they fit into the memory together.
    static constexpr std::uint64_t kServicesMax = 8;
    ServiceConfig service(const Config& made_so_far) {
        const DeviceConfig& device = pick(made_so_far.devices);
        const WorkerConfig& worker = pick(made_so_far.workers);
        ServiceConfig made;
        made.name = word();
        made.device = device.name;
        made.worker = worker.name;
        made.connections_max = number32(1, 16);
        made.address = device.kind == DeviceConfig::Kind::soft ? word() : "[fe80::1%eth0]:" + std::to_string(++words_);
        if (number(0, 1) == 1 || worker.wake_on == WakeOn::solicited) {
            made.kind = ServiceConfig::Kind::memory;
            made.size = number(64, made_so_far.memory.size / kServicesMax);
        } else {
            made.depth = number32(1, 16);
            made.flow = number(0, 1) == 1 ? FlowControl::credits : FlowControl::off;
            const std::uint64_t most = made_so_far.memory.size / (kServicesMax * 16 * 16) / kCacheLine * kCacheLine;
            made.message_size_max = number(1, std::min<std::uint64_t>(most, 1ull << 31));
        }
        return made;
    }

    std::mt19937_64 random_;
    int words_ = 0;
};

TEST(PrintConfig, of_any_valid_configuration_is_read_back_as_the_same) {
    const config::Cpus cpus = RandomConfig::cpus();
    for (std::uint64_t seed = 0; seed < 80; ++seed) {
        const Config made = RandomConfig(seed).make();
        const std::string text = print_config(made);
        ASSERT_NO_THROW(config::check(made, cpus, config::Origin())) << "seed " << seed << '\n' << text;
        ASSERT_EQ(config::parse(text, "printed", cpus), made) << "seed " << seed << '\n' << text;
    }
}

// ---- Any file ----

// Changes a text in one to four places: bytes, runs of bytes, lines, and pieces that have a meaning in TOML.
std::string mutate(std::string text, std::mt19937_64& random) {
    static constexpr std::string_view kPieces[] = {"\"",
                                                   "\"\"\"",
                                                   "'",
                                                   "[",
                                                   "]",
                                                   "[[",
                                                   "]]",
                                                   "{",
                                                   "}",
                                                   "=",
                                                   ".",
                                                   ",",
                                                   "#",
                                                   "\n",
                                                   "\r\n",
                                                   "\\u0000",
                                                   "\\",
                                                   "-",
                                                   "+",
                                                   "0x",
                                                   "1e9",
                                                   "nan",
                                                   "inf",
                                                   "true",
                                                   "1979-05-27T07:32:00Z",
                                                   "99999999999999999999",
                                                   "-1",
                                                   "9223372036854775807",
                                                   "KiB",
                                                   "[[worker]]\n",
                                                   "[device]\n",
                                                   "a.b.c = 1\n",
                                                   "\xff",
                                                   "\xef\xbb\xbf",
                                                   "\xe2\x82",
                                                   "name = ",
                                                   "[[service]]\n"};
    const auto number = [&](std::size_t max) { return std::uniform_int_distribution<std::size_t>(0, max)(random); };
    for (std::size_t changes = 1 + number(3); changes > 0; --changes) {
        const std::size_t at = number(text.size());
        switch (number(5)) {
            case 0: text.insert(at, 1, static_cast<char>(number(255))); break;
            case 1: text.erase(at, number(8)); break;
            case 2: text.insert(at, kPieces[number(std::size(kPieces) - 1)]); break;
            case 3: text.insert(at, text.substr(number(text.size()), number(60))); break;
            case 4:
                if (at < text.size()) {
                    text[at] = static_cast<char>(number(255));
                }
                break;
            default: {  // removes or repeats a line
                const std::size_t begin = text.rfind('\n', at) == std::string::npos ? 0 : text.rfind('\n', at) + 1;
                const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
                if (begin < end) {
                    const std::string line = text.substr(begin, end - begin);
                    number(1) == 0 ? text.erase(begin, line.size()) : text.insert(begin, line);
                }
            }
        }
    }
    return text;
}

TEST(AnyText, is_accepted_or_refused_in_one_line) {
    constexpr int kRounds = 4000;
    const std::string full = sample("pollcored.toml");
    const std::string bare = with_examples(full);
    std::mt19937_64 random(20'240'229);
    int accepted = 0;
    for (int round = 0; round < kRounds; ++round) {
        // Most of the full text is comments, where a change has no effect. So most rounds use the text without
        // comments.
        const std::string text = mutate(round % 4 == 0 ? full : bare, random);
        try {
            const Config parsed = config::parse(text, "f.toml", kFourCpus);
            ++accepted;
            ASSERT_EQ(config::parse(print_config(parsed), "printed", kFourCpus), parsed) << text;
        } catch (const ConfigError& error) {
            const std::string_view message = error.what();
            ASSERT_TRUE(message.starts_with("f.toml:")) << message << '\n' << text;
            ASSERT_NE(message.find("; accepted: "), message.npos) << message << '\n' << text;
            for (const char c : message) {
                ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << message << '\n' << text;
            }
        }
    }
    // If these fail, nearly all rounds were accepted or nearly all were refused, and the test checks little.
    EXPECT_GT(accepted, kRounds / 50);
    EXPECT_LT(accepted, kRounds - kRounds / 50);
}

}  // namespace
}  // namespace pollcore
