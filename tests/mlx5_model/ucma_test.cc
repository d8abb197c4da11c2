// rdma_cm of the model: what the kernel answers librdmacm. Most of it by the commands themselves, since librdmacm sends none that is wrong.
// Wants three devices: MLX5_MODEL_DEVICES=3. The third one is removed.
#include "ucma.hpp"

#include <fcntl.h>
#include <linux/in6.h>
#include <linux/socket.h>
#include <linux/types.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <infiniband/ib.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_cma.h>

#include "fabric.hpp"

// Its enumerators have the names of librdmacm's.
namespace kernel {
#include <rdma/rdma_user_cm.h>
}  // namespace kernel

namespace mlx5_model {
namespace {

constexpr int kPatienceMs = 10000;
constexpr std::uint32_t kRejectedByConsumer = 28;
constexpr std::uint32_t kNobodyListens = 8;
constexpr std::uint32_t kStale = 10;

std::uint64_t address_of(const void* object) {
    return reinterpret_cast<std::uintptr_t>(object);
}

sockaddr_in ipv4(std::uint32_t address, std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_addr.s_addr = address;
    out.sin_port = htons(port);
    return out;
}

sockaddr_in of_device(std::size_t device, std::uint16_t port = 0) {
    return ipv4(devices().at(device).address, port);
}

sockaddr_in any(std::uint16_t port = 0) {
    return ipv4(INADDR_ANY, port);
}

sockaddr_in6 mapped(std::size_t device, std::uint16_t port = 0) {
    sockaddr_in6 out{};
    out.sin6_family = AF_INET6;
    out.sin6_port = htons(port);
    out.sin6_addr.s6_addr[10] = out.sin6_addr.s6_addr[11] = 0xff;
    std::memcpy(out.sin6_addr.s6_addr + 12, &devices().at(device).address, 4);
    return out;
}

/// A descriptor of rdma_cm. Its calls return what write(2) does: 0 for success, else the error.
class Channel {
public:
    Channel() : descriptor_(open_rdma_cm()) { EXPECT_GE(descriptor_, 0); }
    ~Channel() { close(); }
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    void close() {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
        descriptor_ = -1;
    }
    [[nodiscard]] int descriptor() const { return descriptor_; }

    template <class Command>
    int command(std::uint32_t number, const Command& command, std::size_t room = 0) const {
        struct {
            kernel::rdma_ucm_cmd_hdr header;
            Command command;
        } __attribute__((packed)) all{};
        all.header.cmd = number;
        all.header.in = sizeof command;
        all.header.out = static_cast<std::uint16_t>(room);
        std::memcpy(&all.command, &command, sizeof command);
        const ssize_t written = ::write(descriptor_, &all, sizeof all);
        EXPECT_TRUE(written < 0 || written == static_cast<ssize_t>(sizeof all)) << written;
        return written < 0 ? errno : 0;
    }

    int create(std::uint32_t& id, std::uint16_t space = RDMA_PS_TCP, std::uint64_t uid = 1) const {
        kernel::rdma_ucm_create_id_resp answer{};
        kernel::rdma_ucm_create_id command{};
        command.uid = uid;
        command.ps = space;
        command.qp_type = IBV_QPT_RC;
        command.response = address_of(&answer);
        const int error = this->command(kernel::RDMA_USER_CM_CMD_CREATE_ID, command, sizeof answer);
        id = answer.id;
        return error;
    }
    [[nodiscard]] std::uint32_t id(std::uint16_t space = RDMA_PS_TCP) const {
        std::uint32_t number = 0;
        EXPECT_EQ(create(number, space), 0);
        return number;
    }
    int destroy(std::uint32_t id, std::uint32_t* reported = nullptr) const {
        kernel::rdma_ucm_destroy_id_resp answer{};
        kernel::rdma_ucm_destroy_id command{};
        command.id = id;
        command.response = address_of(&answer);
        const int error = this->command(kernel::RDMA_USER_CM_CMD_DESTROY_ID, command, sizeof answer);
        if (reported != nullptr) {
            *reported = answer.events_reported;
        }
        return error;
    }
    template <class Address>
    int bind(std::uint32_t id, const Address& address) const {
        kernel::rdma_ucm_bind command{};
        command.id = id;
        command.addr_size = sizeof address;
        std::memcpy(&command.addr, &address, sizeof address);
        return this->command(kernel::RDMA_USER_CM_CMD_BIND, command);
    }
    template <class Address>
    int resolve(std::uint32_t id, const Address& to, const sockaddr_in* from = nullptr) const {
        kernel::rdma_ucm_resolve_addr command{};
        command.id = id;
        command.timeout_ms = 1000;
        command.dst_size = sizeof to;
        std::memcpy(&command.dst_addr, &to, sizeof to);
        if (from != nullptr) {
            command.src_size = sizeof *from;
            std::memcpy(&command.src_addr, from, sizeof *from);
        }
        return this->command(kernel::RDMA_USER_CM_CMD_RESOLVE_ADDR, command);
    }
    int resolve_route(std::uint32_t id, std::uint32_t timeout_ms = 1000) const {
        return command(kernel::RDMA_USER_CM_CMD_RESOLVE_ROUTE, kernel::rdma_ucm_resolve_route{id, timeout_ms});
    }
    int listen(std::uint32_t id, std::uint32_t backlog = 0) const {
        return command(kernel::RDMA_USER_CM_CMD_LISTEN, kernel::rdma_ucm_listen{id, backlog});
    }
    static kernel::rdma_ucm_conn_param param(std::uint32_t qp_num, const std::string& data = {}) {
        kernel::rdma_ucm_conn_param out{};
        out.qp_num = qp_num;
        out.responder_resources = 3;
        out.initiator_depth = 5;
        out.retry_count = 6;
        out.rnr_retry_count = 4;
        out.valid = 1;
        std::memcpy(out.private_data, data.data(), data.size());
        out.private_data_len = static_cast<std::uint8_t>(data.size());
        return out;
    }
    int connect(std::uint32_t id, std::uint32_t qp_num, const std::string& data = {}) const {
        kernel::rdma_ucm_connect command{};
        command.id = id;
        command.conn_param = param(qp_num, data);
        command.ece = {.vendor_id = 77, .attr_mod = 78};
        return this->command(kernel::RDMA_USER_CM_CMD_CONNECT, command);
    }
    int accept(std::uint32_t id, std::uint32_t qp_num, const std::string& data = {}) const {
        kernel::rdma_ucm_accept command{};
        command.id = id;
        command.uid = 1000 + id;
        command.conn_param = param(qp_num, data);
        command.conn_param.responder_resources = 2;
        command.conn_param.initiator_depth = 1;
        return this->command(kernel::RDMA_USER_CM_CMD_ACCEPT, command);
    }
    /// What the asking end says when its queue pair can send.
    int ready(std::uint32_t id) const {
        kernel::rdma_ucm_accept command{};
        command.id = id;
        return this->command(kernel::RDMA_USER_CM_CMD_ACCEPT, command);
    }
    int reject(std::uint32_t id, const std::string& data = {}, std::uint8_t reason = 0) const {
        kernel::rdma_ucm_reject command{};
        command.id = id;
        command.reason = reason;
        command.private_data_len = static_cast<std::uint8_t>(data.size());
        std::memcpy(command.private_data, data.data(), data.size());
        return this->command(kernel::RDMA_USER_CM_CMD_REJECT, command);
    }
    int disconnect(std::uint32_t id) const { return command(kernel::RDMA_USER_CM_CMD_DISCONNECT, kernel::rdma_ucm_disconnect{id}); }
    int notify(std::uint32_t id, std::uint32_t event) const {
        return command(kernel::RDMA_USER_CM_CMD_NOTIFY, kernel::rdma_ucm_notify{id, event});
    }
    int qp_attributes(std::uint32_t id, std::uint32_t state, ib_uverbs_qp_attr& out) const {
        kernel::rdma_ucm_init_qp_attr command{};
        command.id = id;
        command.qp_state = state;
        command.response = address_of(&out);
        return this->command(kernel::RDMA_USER_CM_CMD_INIT_QP_ATTR, command, sizeof out);
    }
    template <class Value>
    int set_option(std::uint32_t id, std::uint32_t name, Value value, std::uint32_t level = RDMA_OPTION_ID) const {
        kernel::rdma_ucm_set_option command{};
        command.id = id;
        command.level = level;
        command.optname = name;
        command.optval = address_of(&value);
        command.optlen = sizeof value;
        return this->command(kernel::RDMA_USER_CM_CMD_SET_OPTION, command);
    }
    template <class Answer>
    int query(std::uint32_t id, std::uint32_t option, Answer& out, std::size_t room = sizeof(Answer)) const {
        kernel::rdma_ucm_query command{};
        command.id = id;
        command.option = option;
        command.response = address_of(&out);
        return this->command(kernel::RDMA_USER_CM_CMD_QUERY, command, room);
    }
    [[nodiscard]] kernel::rdma_ucm_query_addr_resp addresses(std::uint32_t id) const {
        kernel::rdma_ucm_query_addr_resp out{};
        EXPECT_EQ(query(id, kernel::RDMA_USER_CM_QUERY_ADDR, out), 0);
        return out;
    }
    [[nodiscard]] std::uint16_t port(std::uint32_t id) const {
        const kernel::rdma_ucm_query_addr_resp answer = addresses(id);
        sockaddr_in source{};
        std::memcpy(&source, &answer.src_addr, sizeof source);
        return ntohs(source.sin_port);
    }

    [[nodiscard]] bool readable(int timeout_ms = 0) const {
        pollfd one{descriptor_, POLLIN, 0};
        return ::poll(&one, 1, timeout_ms) == 1;
    }
    int get_event(kernel::rdma_ucm_event_resp& out, std::size_t room = sizeof(kernel::rdma_ucm_event_resp)) const {
        return command(kernel::RDMA_USER_CM_CMD_GET_EVENT, kernel::rdma_ucm_get_event{address_of(&out)}, room);
    }
    /// The next event, which must be this one.
    kernel::rdma_ucm_event_resp expect(std::uint32_t event, std::uint32_t status = 0) const {
        kernel::rdma_ucm_event_resp out{};
        if (!readable(kPatienceMs)) {
            ADD_FAILURE() << "no event came, expected " << rdma_event_str(static_cast<rdma_cm_event_type>(event));
            return out;
        }
        EXPECT_EQ(get_event(out), 0);
        EXPECT_STREQ(rdma_event_str(static_cast<rdma_cm_event_type>(out.event)), rdma_event_str(static_cast<rdma_cm_event_type>(event)));
        EXPECT_EQ(static_cast<std::int32_t>(out.status), static_cast<std::int32_t>(status));
        return out;
    }

private:
    int descriptor_;
};

class RdmaCm : public ::testing::Test {
protected:
    std::uint32_t listener(const sockaddr_in& at, std::uint32_t backlog = 0, std::uint16_t space = RDMA_PS_TCP) {
        const std::uint32_t id = server.id(space);
        EXPECT_EQ(server.bind(id, at), 0);
        EXPECT_EQ(server.listen(id, backlog), 0);
        return id;
    }
    std::uint32_t routed(const sockaddr_in& to, std::uint16_t space = RDMA_PS_TCP) {
        const std::uint32_t id = client.id(space);
        EXPECT_EQ(client.resolve(id, to), 0);
        client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        EXPECT_EQ(client.resolve_route(id), 0);
        client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
        return id;
    }
    /// Both ends, where one has asked and nobody has answered.
    void ask() {
        listening = listener(of_device(0));
        asking = routed(of_device(0, server.port(listening)));
        ASSERT_EQ(client.connect(asking, kAskingQp, "please"), 0);
        asked = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        answering = asked.id;
    }
    void reply() {
        ask();
        ASSERT_EQ(server.accept(answering, kAnsweringQp, "yes"), 0);
        replied = client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    }
    void establish() {
        reply();
        ASSERT_EQ(client.ready(asking), 0);
        server.expect(RDMA_CM_EVENT_ESTABLISHED);
    }
    static void expect_data(const std::uint8_t* data, std::uint8_t told, const std::string& sent, std::size_t all) {
        EXPECT_EQ(told, all);
        EXPECT_EQ(std::string(reinterpret_cast<const char*>(data), told), sent + std::string(all - sent.size(), '\0'));
    }

    static constexpr std::uint32_t kAskingQp = 0x111;
    static constexpr std::uint32_t kAnsweringQp = 0x222;

    Channel client;
    Channel server;
    std::uint32_t listening = 0;
    std::uint32_t asking = 0;
    std::uint32_t answering = 0;
    kernel::rdma_ucm_event_resp asked{};
    kernel::rdma_ucm_event_resp replied{};
};

// ---- The descriptor and its commands ----

TEST_F(RdmaCm, IsACharacterDevice) {
    struct stat what {};
    ASSERT_EQ(::fstat(client.descriptor(), &what), 0);
    EXPECT_TRUE(S_ISCHR(what.st_mode));
    EXPECT_EQ(what.st_rdev, makedev(10, 58));
}

TEST_F(RdmaCm, RefusesWhatIsNoCommand) {
    const kernel::rdma_ucm_cmd_hdr empty{};
    EXPECT_EQ(::write(client.descriptor(), &empty, sizeof empty - 1), -1);
    EXPECT_EQ(errno, EINVAL);
    const kernel::rdma_ucm_cmd_hdr longer{kernel::RDMA_USER_CM_CMD_LISTEN, 8, 0};
    EXPECT_EQ(::write(client.descriptor(), &longer, sizeof longer), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_JOIN_MCAST + 1, std::uint64_t{0}), EINVAL);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_GET_OPTION, std::uint64_t{0}), ENOSYS);
    char byte = 0;
    EXPECT_EQ(::read(client.descriptor(), &byte, 1), -1);
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(RdmaCm, RefusesAnAnswerThatHasNoRoom) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_CREATE_ID, kernel::rdma_ucm_create_id{}, 3), ENOSPC);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_DESTROY_ID, kernel::rdma_ucm_destroy_id{}, 3), ENOSPC);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_INIT_QP_ATTR, kernel::rdma_ucm_init_qp_attr{}, 3), ENOSPC);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_QUERY_ROUTE, kernel::rdma_ucm_query{}, 3), ENOSPC);
    kernel::rdma_ucm_query_addr_resp answer{};
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_ADDR, answer, 3), ENOSPC);
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_GID, answer, 3), ENOSPC);
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_PATH, answer, 3), ENOSPC);
    EXPECT_EQ(client.query(id, 3, answer), ENOSYS);
    kernel::rdma_ucm_event_resp event{};
    EXPECT_EQ(client.get_event(event, 8), ENOSPC);
}

TEST_F(RdmaCm, AnIdentifierIsOfOneDescriptorAndOfAKnownSpace) {
    std::uint32_t number = 0;
    EXPECT_EQ(client.create(number, 0x107), EINVAL);
    const std::uint32_t id = client.id();
    EXPECT_EQ(server.destroy(id), EINVAL);
    EXPECT_EQ(server.listen(id), EINVAL);
    EXPECT_EQ(client.destroy(id), 0);
    EXPECT_EQ(client.destroy(id), ENOENT);
    EXPECT_EQ(client.listen(id), ENOENT);
    EXPECT_EQ(client.id(), id) << "the lowest number that is free";
    kernel::rdma_ucm_create_id nowhere{};
    nowhere.ps = RDMA_PS_TCP;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_CREATE_ID, nowhere, 4), EFAULT);
}

TEST_F(RdmaCm, WithoutEventsADescriptorSaysSoOrWaits) {
    kernel::rdma_ucm_event_resp event{};
    ASSERT_EQ(::fcntl(client.descriptor(), F_SETFL, O_NONBLOCK), 0);
    EXPECT_FALSE(client.readable());
    EXPECT_EQ(client.get_event(event), EAGAIN);
    ASSERT_EQ(::fcntl(client.descriptor(), F_SETFL, 0), 0);
    const std::uint32_t id = client.id();
    std::thread waits([&] { EXPECT_EQ(client.get_event(event), 0); });
    EXPECT_EQ(client.resolve(id, of_device(0, 7)), 0);
    waits.join();
    EXPECT_EQ(event.event, static_cast<std::uint32_t>(RDMA_CM_EVENT_ADDR_RESOLVED));
    EXPECT_EQ(event.id, id);
    EXPECT_EQ(event.uid, 1u);
    EXPECT_FALSE(client.readable());
}

TEST_F(RdmaCm, TellsAtTheEndHowManyEventsWereHandedOut) {
    const std::uint32_t none = client.id();
    std::uint32_t reported = 99;
    EXPECT_EQ(client.destroy(none, &reported), 0);
    EXPECT_EQ(reported, 0u);

    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, of_device(0, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(client.resolve_route(id), 0);
    EXPECT_TRUE(client.readable());
    EXPECT_EQ(client.destroy(id, &reported), 0);
    EXPECT_EQ(reported, 1u);
    EXPECT_FALSE(client.readable()) << "what nobody has read goes with the identifier";
}

TEST_F(RdmaCm, ARequestCountsForItsListener) {
    ask();
    std::uint32_t reported = 99;
    EXPECT_EQ(server.destroy(answering, &reported), 0);
    EXPECT_EQ(reported, 0u);
    EXPECT_EQ(server.destroy(listening, &reported), 0);
    EXPECT_EQ(reported, 1u);
}

// ---- Addresses and ports ----

TEST_F(RdmaCm, ABoundIdentifierIsOfTheDeviceWithTheAddress) {
    for (std::size_t device = 0; device < 2; ++device) {
        const std::uint32_t id = client.id();
        ASSERT_EQ(client.bind(id, of_device(device)), 0);
        const kernel::rdma_ucm_query_addr_resp answer = client.addresses(id);
        EXPECT_EQ(answer.node_guid, devices()[device].node_guid);
        EXPECT_EQ(answer.port_num, 1);
        EXPECT_EQ(answer.pkey, 0);
        EXPECT_EQ(answer.src_size, sizeof(sockaddr_in));
        EXPECT_EQ(answer.dst_size, sizeof(sockaddr_in));
        EXPECT_GE(client.port(id), 32768);
        EXPECT_EQ(client.bind(id, of_device(device)), EINVAL);
    }
    const std::uint32_t nowhere = client.id();
    ASSERT_EQ(client.bind(nowhere, any()), 0);
    EXPECT_EQ(client.addresses(nowhere).node_guid, 0u);
}

TEST_F(RdmaCm, AnAddressOfNoDeviceIsNotAvailable) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.bind(id, ipv4(htonl(0xc0000201), 0)), EADDRNOTAVAIL);
    EXPECT_EQ(client.bind(id, of_device(0)), 0) << "a refusal changes nothing";
    const std::uint32_t ipoib = client.id(RDMA_PS_IPOIB);
    EXPECT_EQ(client.bind(ipoib, of_device(0)), EINVAL);
}

TEST_F(RdmaCm, AnAddressOfAWrongSizeIsInvalid) {
    const std::uint32_t id = client.id();
    kernel::rdma_ucm_bind command{};
    const sockaddr_in source = of_device(0);
    command.id = id;
    std::memcpy(&command.addr, &source, sizeof source);
    command.addr_size = sizeof source - 1;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND, command), EINVAL);
    command.addr_size = 0;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND, command), EINVAL);
    command.addr_size = sizeof source;
    command.reserved = 1;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND, command), EINVAL);
    kernel::rdma_ucm_bind_ip of_no_family{};
    of_no_family.id = id;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND_IP, of_no_family), EINVAL);
    std::memcpy(&of_no_family.addr, &source, sizeof source);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND_IP, of_no_family), 0);
}

TEST_F(RdmaCm, InfiniBandAddressesAreKnownAndOfNoDevice) {
    const std::uint32_t id = client.id(RDMA_PS_IB);
    sockaddr_ib address{};
    address.sib_family = AF_IB;
    address.sib_addr.sib_raw[15] = 1;
    EXPECT_EQ(client.bind(id, address), ENODEV);
    address.sib_addr = {};
    address.sib_sid = htobe64(RDMA_IB_IP_PS_TCP);
    address.sib_sid_mask = htobe64(RDMA_IB_IP_PS_MASK);
    EXPECT_EQ(client.bind(id, address), 0) << "librdmacm looks so whether the kernel knows them";
    const std::uint32_t of_no_space = client.id(RDMA_PS_UDP);
    EXPECT_EQ(client.bind(of_no_space, address), EPROTONOSUPPORT);
}

TEST_F(RdmaCm, APortIsTakenOnceInItsSpace) {
    const std::uint32_t first = client.id();
    ASSERT_EQ(client.bind(first, of_device(0)), 0);
    const std::uint16_t port = client.port(first);
    const std::uint32_t second = client.id();
    EXPECT_EQ(client.bind(second, of_device(0, port)), EADDRINUSE);
    EXPECT_EQ(client.bind(second, any(port)), EADDRNOTAVAIL);
    EXPECT_EQ(client.bind(second, of_device(1, port)), 0) << "of another address";
    const std::uint32_t datagram = client.id(RDMA_PS_UDP);
    EXPECT_EQ(client.bind(datagram, of_device(0, port)), 0) << "of another space";
    EXPECT_EQ(client.destroy(first), 0);
    const std::uint32_t third = client.id();
    EXPECT_EQ(client.bind(third, of_device(0, port)), 0) << "free again";
}

TEST_F(RdmaCm, APortThatIsReusedHasOneListener) {
    const std::uint32_t first = client.id();
    const std::uint32_t second = client.id();
    for (const std::uint32_t id : {first, second}) {
        ASSERT_EQ(client.set_option(id, RDMA_OPTION_ID_REUSEADDR, int{1}), 0);
    }
    ASSERT_EQ(client.bind(first, of_device(0)), 0);
    ASSERT_EQ(client.bind(second, of_device(0, client.port(first))), 0);
    EXPECT_EQ(client.listen(first), EADDRINUSE) << "the other one is bound to it";
    EXPECT_EQ(client.destroy(second), 0);
    EXPECT_EQ(client.listen(first), 0);
    EXPECT_EQ(client.set_option(first, RDMA_OPTION_ID_REUSEADDR, int{1}), EINVAL);
}

TEST_F(RdmaCm, ListeningBindsToAnyAddressAndHappensOnce) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.listen(id), 0);
    EXPECT_NE(client.port(id), 0);
    EXPECT_EQ(client.listen(id), EINVAL);
    EXPECT_EQ(client.resolve(id, of_device(0, 7)), EINVAL);
}

TEST_F(RdmaCm, OptionsHaveTheirSizesAndTimes) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_TOS, std::uint8_t{8}), 0);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_TOS, int{8}), EINVAL);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_ACK_TIMEOUT, std::uint8_t{14}), 0);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_AFONLY, int{1}), 0);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_AFONLY, std::uint8_t{1}), EINVAL);
    EXPECT_EQ(client.set_option(id, 99, int{1}), ENOSYS);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_IB_PATH, int{1}, RDMA_OPTION_IB), ENOSYS);
    const std::uint32_t datagram = client.id(RDMA_PS_UDP);
    EXPECT_EQ(client.set_option(datagram, RDMA_OPTION_ID_ACK_TIMEOUT, std::uint8_t{14}), EINVAL);
    EXPECT_EQ(client.listen(id), 0);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_AFONLY, int{1}), EINVAL);
}

// ---- To a route ----

TEST_F(RdmaCm, ResolvingLeadsToTheDeviceAndKeepsThePort) {
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, of_device(1, 7)), 0);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(event.id, id);
    const kernel::rdma_ucm_query_addr_resp answer = client.addresses(id);
    EXPECT_EQ(answer.node_guid, devices()[1].node_guid);
    sockaddr_in source{};
    sockaddr_in destination{};
    std::memcpy(&source, &answer.src_addr, sizeof source);
    std::memcpy(&destination, &answer.dst_addr, sizeof destination);
    EXPECT_EQ(source.sin_addr.s_addr, devices()[1].address);
    EXPECT_NE(source.sin_port, 0);
    EXPECT_EQ(destination.sin_addr.s_addr, devices()[1].address);
    EXPECT_EQ(ntohs(destination.sin_port), 7);
    EXPECT_EQ(client.resolve(id, of_device(1, 7)), EINVAL);
}

TEST_F(RdmaCm, AnIdentifierStaysWithTheDeviceOfItsSource) {
    const std::uint32_t id = client.id();
    const sockaddr_in source = of_device(1);
    ASSERT_EQ(client.resolve(id, of_device(0, 7), &source), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(client.addresses(id).node_guid, devices()[1].node_guid);
}

TEST_F(RdmaCm, WhatLeadsNowhereIsTold) {
    const sockaddr_in nowhere = ipv4(htonl(0xc0000201), 7);
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, nowhere), 0);
    client.expect(RDMA_CM_EVENT_ADDR_ERROR, static_cast<std::uint32_t>(-ENODEV));
    EXPECT_EQ(client.resolve(id, of_device(0, 7)), 0) << "it may try again";
    const std::uint32_t bound = client.id();
    const sockaddr_in source = of_device(0);
    ASSERT_EQ(client.resolve(bound, nowhere, &source), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    client.expect(RDMA_CM_EVENT_ADDR_ERROR, static_cast<std::uint32_t>(-ETIMEDOUT));
    const std::uint32_t from_nowhere = client.id();
    EXPECT_EQ(client.resolve(from_nowhere, of_device(0, 7), &nowhere), EADDRNOTAVAIL);
    const std::uint32_t other_family = client.id();
    ASSERT_EQ(client.bind(other_family, of_device(0)), 0);
    EXPECT_EQ(client.resolve(other_family, mapped(0, 7)), EINVAL);
}

TEST_F(RdmaCm, StepsComeInTheirOrder) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.resolve_route(id), EINVAL);
    EXPECT_EQ(client.connect(id, 1), EINVAL);
    EXPECT_EQ(client.accept(id, 1), EINVAL);
    EXPECT_EQ(client.reject(id), EINVAL);
    EXPECT_EQ(client.disconnect(id), EINVAL);
    EXPECT_EQ(client.notify(id, IBV_EVENT_COMM_EST), EINVAL);
    ib_uverbs_qp_attr attributes{};
    EXPECT_EQ(client.qp_attributes(id, IBV_QPS_INIT, attributes), EINVAL) << "it has no device";
    ASSERT_EQ(client.resolve(id, of_device(0, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(client.resolve_route(id, 0), EINVAL);
    EXPECT_EQ(client.connect(id, 1), EINVAL);
    EXPECT_EQ(client.accept(id, 1), EINVAL);
    EXPECT_EQ(client.reject(id), EINVAL);
    EXPECT_EQ(client.disconnect(id), EINVAL);
    ASSERT_EQ(client.resolve_route(id), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    EXPECT_EQ(client.resolve_route(id), EINVAL);
    EXPECT_EQ(client.qp_attributes(id, IBV_QPS_INIT, attributes), 0);
    EXPECT_EQ(attributes.qp_attr_mask, static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    EXPECT_EQ(attributes.qp_access_flags, 0u);
    EXPECT_EQ(client.qp_attributes(id, IBV_QPS_ERR + 1, attributes), EINVAL);
}

TEST_F(RdmaCm, ARouteIsToldInEachWayToAsk) {
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.set_option(id, RDMA_OPTION_ID_TOS, std::uint8_t{0x68}), 0);
    ASSERT_EQ(client.resolve(id, of_device(1, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    struct {
        std::uint32_t num_paths;
        std::uint32_t reserved;
        ibv_path_data path[2];
    } path{};
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_PATH, path), 0);
    EXPECT_EQ(path.num_paths, 0u);
    ASSERT_EQ(client.resolve_route(id), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);

    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_PATH, path), 0);
    EXPECT_EQ(path.num_paths, 1u);
    EXPECT_EQ(std::memcmp(path.path[0].path.dgid.raw, devices()[1].gid.raw, 16), 0);
    EXPECT_EQ(path.path[0].path.tclass, 0x68);
    EXPECT_EQ(be32toh(path.path[0].path.flowlabel_hoplimit) & 0xff, 64u);
    EXPECT_EQ(be32toh(path.path[0].path.flowlabel_hoplimit) >> 8, (client.port(id) * 31u + 7) & 0xfffff);
    EXPECT_EQ(path.path[0].path.mtu & 0x3f, IBV_MTU_4096);

    kernel::rdma_ucm_query_addr_resp gids{};
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_GID, gids), 0);
    sockaddr_ib destination{};
    std::memcpy(&destination, &gids.dst_addr, sizeof destination);
    EXPECT_EQ(destination.sib_family, AF_IB);
    EXPECT_EQ(std::memcmp(&destination.sib_addr, devices()[1].gid.raw, 16), 0);
    EXPECT_EQ(be64toh(destination.sib_sid), RDMA_IB_IP_PS_TCP + 7);

    kernel::rdma_ucm_query command{};
    kernel::rdma_ucm_query_route_resp route{};
    command.id = id;
    command.response = address_of(&route);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_QUERY_ROUTE, command, sizeof route), 0);
    EXPECT_EQ(route.node_guid, devices()[1].node_guid);
    EXPECT_EQ(route.num_paths, 1u);
    EXPECT_EQ(std::memcmp(route.ib_route[0].dgid, devices()[1].gid.raw, 16), 0);
    EXPECT_EQ(route.ib_route[0].traffic_class, 0x68);
}

// ---- Connections ----

TEST_F(RdmaCm, BothEndsLearnWhatTheOtherOneSaid) {
    establish();
    EXPECT_EQ(asked.uid, 1u);
    EXPECT_EQ(asked.param.conn.qp_num, kAskingQp);
    EXPECT_EQ(asked.param.conn.responder_resources, 5) << "what the other end will send at most";
    EXPECT_EQ(asked.param.conn.initiator_depth, 3);
    EXPECT_EQ(asked.param.conn.retry_count, 6);
    EXPECT_EQ(asked.param.conn.rnr_retry_count, 4);
    EXPECT_EQ(asked.ece.vendor_id, 77u);
    EXPECT_EQ(asked.ece.attr_mod, 78u);
    expect_data(asked.param.conn.private_data, asked.param.conn.private_data_len, "please", 56);
    EXPECT_EQ(replied.id, asking);
    EXPECT_EQ(replied.param.conn.qp_num, kAnsweringQp);
    EXPECT_EQ(replied.param.conn.responder_resources, 1);
    EXPECT_EQ(replied.param.conn.initiator_depth, 2);
    expect_data(replied.param.conn.private_data, replied.param.conn.private_data_len, "yes", 196);

    const kernel::rdma_ucm_query_addr_resp near = client.addresses(asking);
    const kernel::rdma_ucm_query_addr_resp far = server.addresses(answering);
    EXPECT_EQ(std::memcmp(&near.src_addr, &far.dst_addr, sizeof(sockaddr_in)), 0);
    EXPECT_EQ(std::memcmp(&near.dst_addr, &far.src_addr, sizeof(sockaddr_in)), 0);
    EXPECT_EQ(far.node_guid, devices()[0].node_guid);
    EXPECT_EQ(client.ready(asking), EINVAL) << "once is enough";
}

TEST_F(RdmaCm, TheAttributesOfBothQueuePairsFitTogether) {
    establish();
    ib_uverbs_qp_attr near{};
    ib_uverbs_qp_attr far{};
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_INIT, near), 0);
    EXPECT_EQ(near.qp_access_flags,
              static_cast<std::uint32_t>(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
    EXPECT_EQ(near.port_num, 1);
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_RTR, near), 0);
    ASSERT_EQ(server.qp_attributes(answering, IBV_QPS_RTS, far), 0);
    EXPECT_EQ(near.qp_attr_mask, static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    EXPECT_EQ(far.qp_attr_mask, static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                           IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT));
    EXPECT_EQ(near.rq_psn, far.sq_psn);
    EXPECT_EQ(near.dest_qp_num, kAnsweringQp);
    EXPECT_EQ(near.path_mtu, static_cast<std::uint32_t>(IBV_MTU_4096));
    EXPECT_EQ(near.max_dest_rd_atomic, 1);
    EXPECT_EQ(far.max_rd_atomic, 1);
    EXPECT_EQ(far.retry_cnt, 6);
    EXPECT_EQ(far.rnr_retry, 4);
    EXPECT_NE(far.timeout, 0);
    EXPECT_EQ(near.ah_attr.is_global, 1);
    EXPECT_EQ(near.ah_attr.grh.sgid_index, 1);
    EXPECT_EQ(near.ah_attr.grh.hop_limit, 64);
    EXPECT_EQ(near.ah_attr.port_num, 1);
    EXPECT_EQ(std::memcmp(near.ah_attr.grh.dgid, devices()[0].gid.raw, 16), 0);
    ASSERT_EQ(server.qp_attributes(answering, IBV_QPS_RTR, far), 0);
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_RTS, near), 0);
    EXPECT_EQ(far.rq_psn, near.sq_psn);
    EXPECT_EQ(far.dest_qp_num, kAskingQp);
    EXPECT_EQ(client.qp_attributes(asking, IBV_QPS_SQD, near), EINVAL);
}

TEST_F(RdmaCm, WhoAsksKnowsNothingOfThePeerYet) {
    ask();
    ib_uverbs_qp_attr attributes{};
    EXPECT_EQ(client.qp_attributes(asking, IBV_QPS_INIT, attributes), 0);
    EXPECT_EQ(client.qp_attributes(asking, IBV_QPS_RTR, attributes), EINVAL);
    EXPECT_EQ(server.qp_attributes(answering, IBV_QPS_RTR, attributes), 0);
    EXPECT_EQ(attributes.dest_qp_num, kAskingQp);
    EXPECT_EQ(server.qp_attributes(answering, IBV_QPS_RTS, attributes), 0);
}

TEST_F(RdmaCm, TheTimeoutThatWasAskedForGoesIntoTheAttributes) {
    listening = listener(of_device(0));
    asking = client.id();
    ASSERT_EQ(client.set_option(asking, RDMA_OPTION_ID_ACK_TIMEOUT, std::uint8_t{9}), 0);
    ASSERT_EQ(client.resolve(asking, of_device(0, server.port(listening))), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(client.resolve_route(asking), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    ASSERT_EQ(client.connect(asking, kAskingQp), 0);
    answering = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    ASSERT_EQ(server.accept(answering, kAnsweringQp), 0);
    client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    ib_uverbs_qp_attr attributes{};
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_RTS, attributes), 0);
    EXPECT_EQ(attributes.timeout, 9);
}

TEST_F(RdmaCm, PrivateDataHasALimitInEachMessage) {
    listening = listener(of_device(0));
    asking = routed(of_device(0, server.port(listening)));
    EXPECT_EQ(client.connect(asking, kAskingQp, std::string(57, 'x')), EINVAL);
    EXPECT_EQ(client.connect(asking, kAskingQp, std::string(56, 'x')), 0) << "a refusal changes nothing";
    const kernel::rdma_ucm_event_resp request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    expect_data(request.param.conn.private_data, request.param.conn.private_data_len, std::string(56, 'x'), 56);
    EXPECT_EQ(server.reject(request.id, std::string(149, 'x')), EINVAL);
    EXPECT_EQ(server.accept(request.id, kAnsweringQp, std::string(196, 'y')), 0);
    const kernel::rdma_ucm_event_resp response = client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    expect_data(response.param.conn.private_data, response.param.conn.private_data_len, std::string(196, 'y'), 196);
}

TEST_F(RdmaCm, AReplyThatIsTooLongRejects) {
    ask();
    EXPECT_EQ(server.accept(answering, kAnsweringQp, std::string(197, 'y')), EINVAL);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
    expect_data(event.param.conn.private_data, event.param.conn.private_data_len, "", 148);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), EINVAL);
}

TEST_F(RdmaCm, NobodyListensWhereThereIsNoListener) {
    const std::uint32_t datagram = listener(of_device(0), 0, RDMA_PS_UDP);
    const std::uint16_t port = server.port(datagram);
    const std::uint32_t bound = server.id();
    ASSERT_EQ(server.bind(bound, of_device(0, port)), 0);
    const std::uint32_t id = routed(of_device(0, port));
    ASSERT_EQ(client.connect(id, kAskingQp), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kNobodyListens);
    EXPECT_EQ(client.connect(id, kAskingQp), EINVAL) << "an identifier asks once";
    EXPECT_FALSE(server.readable());
}

TEST_F(RdmaCm, AListenerOnAnyAddressHearsOfEachDevice) {
    listening = listener(any());
    const std::uint16_t port = server.port(listening);
    for (std::size_t device = 0; device < 2; ++device) {
        const std::uint32_t id = routed(of_device(device, port));
        ASSERT_EQ(client.connect(id, kAskingQp), 0);
        answering = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
        EXPECT_EQ(server.addresses(answering).node_guid, devices()[device].node_guid);
    }
    EXPECT_EQ(server.disconnect(listening), EINVAL) << "it has no device";
}

TEST_F(RdmaCm, AListenerOnOneAddressHearsOfNoOther) {
    listening = listener(of_device(0));
    const std::uint32_t id = routed(of_device(1, server.port(listening)));
    ASSERT_EQ(client.connect(id, kAskingQp), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kNobodyListens);
}

TEST_F(RdmaCm, TwoDevicesConnect) {
    listening = listener(of_device(1));
    asking = client.id();
    const sockaddr_in source = of_device(0);
    ASSERT_EQ(client.resolve(asking, of_device(1, server.port(listening)), &source), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(client.resolve_route(asking), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    ASSERT_EQ(client.connect(asking, kAskingQp), 0);
    answering = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    ASSERT_EQ(server.accept(answering, kAnsweringQp), 0);
    client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    ib_uverbs_qp_attr near{};
    ib_uverbs_qp_attr far{};
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_RTR, near), 0);
    ASSERT_EQ(server.qp_attributes(answering, IBV_QPS_RTR, far), 0);
    EXPECT_EQ(std::memcmp(near.ah_attr.grh.dgid, devices()[1].gid.raw, 16), 0);
    EXPECT_EQ(std::memcmp(far.ah_attr.grh.dgid, devices()[0].gid.raw, 16), 0);
}

TEST_F(RdmaCm, AMappedAddressIsOfIpv6) {
    sockaddr_in6 all{};
    all.sin6_family = AF_INET6;
    const std::uint32_t both = server.id();
    ASSERT_EQ(server.bind(both, all), 0);
    ASSERT_EQ(server.listen(both), 0);
    const std::uint16_t port = server.port(both);  // at the same place in both families
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, mapped(1, port)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(client.addresses(id).node_guid, devices()[1].node_guid);
    ASSERT_EQ(client.resolve_route(id), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    ASSERT_EQ(client.connect(id, kAskingQp), 0);
    const std::uint32_t request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    EXPECT_EQ(server.addresses(request).src_size, sizeof(sockaddr_in6));
    ASSERT_EQ(client.connect(routed(of_device(0, port)), kAskingQp + 1), 0);
    server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
}

TEST_F(RdmaCm, AQueuePairThatIsConnectedAsksInVain) {
    establish();
    const std::uint32_t id = routed(of_device(0, server.port(listening)));
    ASSERT_EQ(client.connect(id, kAskingQp), 0);
    client.expect(RDMA_CM_EVENT_DISCONNECTED);
    client.expect(RDMA_CM_EVENT_REJECTED, kStale);
}

TEST_F(RdmaCm, ARequestWaitsForTheBacklog) {
    listening = listener(of_device(0), 1);
    const sockaddr_in there = of_device(0, server.port(listening));
    const std::uint32_t first = routed(there);
    const std::uint32_t second = routed(there);
    ASSERT_EQ(client.connect(first, kAskingQp), 0);
    ASSERT_EQ(client.connect(second, kAskingQp + 1), 0);
    EXPECT_EQ(server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).param.conn.qp_num, kAskingQp);
    EXPECT_EQ(server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).param.conn.qp_num, kAskingQp + 1);
}

TEST_F(RdmaCm, WhoIsNeverHeardGivesUp) {
    listening = listener(of_device(0), 1);
    const sockaddr_in there = of_device(0, server.port(listening));
    ASSERT_EQ(client.connect(routed(there), kAskingQp), 0);
    ASSERT_EQ(client.connect(routed(there), kAskingQp + 1), 0);
    client.expect(RDMA_CM_EVENT_UNREACHABLE, static_cast<std::uint32_t>(-ETIMEDOUT));
}

TEST_F(RdmaCm, ARejectionBringsItsDataAndReason) {
    ask();
    EXPECT_EQ(server.reject(answering, "no", 3), EINVAL) << "not a reason of the program's";
    EXPECT_EQ(server.reject(answering, "no"), 0);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
    EXPECT_EQ(event.id, asking);
    expect_data(event.param.conn.private_data, event.param.conn.private_data_len, "no", 148);
    EXPECT_EQ(server.reject(answering), EINVAL);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), EINVAL);
    EXPECT_EQ(client.disconnect(asking), 0) << "the kernel says nothing of it";
    EXPECT_FALSE(server.readable());
}

TEST_F(RdmaCm, ARejectionOfOptionsHasItsReason) {
    ask();
    EXPECT_EQ(server.reject(answering, "", 35), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, 35);
}

TEST_F(RdmaCm, AReplyIsRejectedToo) {
    reply();
    EXPECT_EQ(client.reject(asking, "changed my mind"), 0);
    const kernel::rdma_ucm_event_resp event = server.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
    EXPECT_EQ(event.uid, 1000u + answering) << "as it was accepted with";
}

TEST_F(RdmaCm, AnEstablishedConnectionIsNotRejected) {
    establish();
    EXPECT_EQ(client.reject(asking), EINVAL);
    EXPECT_EQ(server.reject(answering), EINVAL);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), EINVAL);
    EXPECT_FALSE(client.readable());
}

TEST_F(RdmaCm, ANoticeEstablishesOnce) {
    reply();
    EXPECT_EQ(server.notify(answering, IBV_EVENT_PATH_MIG_ERR), EINVAL);
    EXPECT_EQ(client.notify(asking, IBV_EVENT_COMM_EST), EINVAL);
    EXPECT_EQ(server.notify(answering, IBV_EVENT_COMM_EST), 0);
    server.expect(RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(server.notify(answering, IBV_EVENT_COMM_EST), EISCONN);
    EXPECT_EQ(client.ready(asking), 0);
    EXPECT_FALSE(server.readable()) << "it is told once";
}

// ---- The ends of connections ----

TEST_F(RdmaCm, ADisconnectWaitsForItsAnswer) {
    establish();
    EXPECT_EQ(client.disconnect(asking), 0);
    EXPECT_EQ(server.expect(RDMA_CM_EVENT_DISCONNECTED).id, answering);
    EXPECT_FALSE(client.readable());
    ib_uverbs_qp_attr attributes{};
    EXPECT_EQ(server.qp_attributes(answering, IBV_QPS_RTS, attributes), EINVAL);
    EXPECT_EQ(server.disconnect(answering), 0);
    client.expect(RDMA_CM_EVENT_DISCONNECTED);
    client.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
    server.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
    EXPECT_EQ(server.disconnect(answering), 0) << "the kernel says nothing of it";
    EXPECT_FALSE(client.readable());
}

TEST_F(RdmaCm, WhoGoesBeforeTheAnswerIsMissed) {
    ask();
    EXPECT_EQ(client.destroy(asking), 0);
    EXPECT_FALSE(server.readable()) << "nothing is told of a request that was not accepted";
    ib_uverbs_qp_attr attributes{};
    EXPECT_EQ(server.qp_attributes(answering, IBV_QPS_INIT, attributes), EINVAL);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), EINVAL);
    EXPECT_EQ(server.reject(answering), EINVAL);
    EXPECT_EQ(server.destroy(answering), 0);
}

TEST_F(RdmaCm, WhoGoesInsteadOfAnsweringRejects) {
    ask();
    EXPECT_EQ(server.destroy(answering), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
}

TEST_F(RdmaCm, WhoGoesAfterTheReplyRejects) {
    reply();
    EXPECT_EQ(server.destroy(answering), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
    EXPECT_EQ(client.ready(asking), EINVAL);
}

TEST_F(RdmaCm, WhoGoesWithTheReplyUnansweredRejects) {
    reply();
    EXPECT_EQ(client.destroy(asking), 0);
    server.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
}

TEST_F(RdmaCm, WhoGoesWithAConnectionDisconnects) {
    establish();
    EXPECT_EQ(client.destroy(asking), 0);
    server.expect(RDMA_CM_EVENT_DISCONNECTED);
    EXPECT_EQ(server.disconnect(answering), 0);
    server.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

TEST_F(RdmaCm, WhoGoesAnswersADisconnect) {
    establish();
    EXPECT_EQ(server.disconnect(answering), 0);
    client.expect(RDMA_CM_EVENT_DISCONNECTED);
    EXPECT_EQ(client.destroy(asking), 0);
    server.expect(RDMA_CM_EVENT_DISCONNECTED);
    server.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

TEST_F(RdmaCm, AListenerTakesUnreadRequestsWithIt) {
    listening = listener(of_device(0));
    const sockaddr_in there = of_device(0, server.port(listening));
    const std::uint32_t read = routed(there);
    const std::uint32_t unread = routed(there);
    ASSERT_EQ(client.connect(read, kAskingQp), 0);
    ASSERT_EQ(client.connect(unread, kAskingQp + 1), 0);
    answering = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    EXPECT_EQ(server.destroy(listening), 0);
    EXPECT_FALSE(server.readable());
    EXPECT_EQ(client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer).id, unread);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), 0) << "what was read lives on";
    client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
}

TEST_F(RdmaCm, ADescriptorThatIsClosedTakesAllWithIt) {
    establish();
    const std::uint16_t port = server.port(listening);
    const std::uint32_t second = routed(of_device(0, port));
    ASSERT_EQ(client.connect(second, kAskingQp + 1), 0);
    server.close();
    EXPECT_EQ(client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer).id, second) << "with the listener, which is the oldest";
    EXPECT_EQ(client.expect(RDMA_CM_EVENT_DISCONNECTED).id, asking);
    const std::uint32_t third = routed(of_device(0, port));
    ASSERT_EQ(client.connect(third, kAskingQp + 2), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kNobodyListens);
}

TEST_F(RdmaCm, ManyThreadsAskAndOneAnswers) {
    constexpr std::uint32_t kThreads = 3;
    constexpr std::uint32_t kRounds = 60;
    listening = listener(of_device(0), 2);
    const sockaddr_in there = of_device(0, server.port(listening));
    const auto asks = [&](std::uint32_t thread) {
        Channel own;
        for (std::uint32_t round = 0; round < kRounds; ++round) {
            const std::uint32_t id = own.id();
            ASSERT_EQ(own.resolve(id, there), 0);
            own.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
            ASSERT_EQ(own.resolve_route(id), 0);
            own.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
            ASSERT_EQ(own.connect(id, 1 + thread * kRounds + round), 0);
            kernel::rdma_ucm_event_resp event{};
            ASSERT_EQ(own.get_event(event), 0);
            if (event.event == RDMA_CM_EVENT_CONNECT_RESPONSE) {
                ASSERT_EQ(own.ready(id), 0);
            } else {
                ASSERT_EQ(event.event, static_cast<std::uint32_t>(RDMA_CM_EVENT_REJECTED));
            }
            std::uint32_t reported = 0;
            ASSERT_EQ(own.destroy(id, &reported), 0);
            ASSERT_EQ(reported, 3u);
        }
    };
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < kThreads; ++i) {
        threads.emplace_back(asks, i);
    }
    // Every third is rejected by being destroyed.
    for (std::uint32_t ended = 0, requests = 0; ended < kThreads * kRounds;) {
        kernel::rdma_ucm_event_resp event{};
        ASSERT_TRUE(server.readable(kPatienceMs));
        ASSERT_EQ(server.get_event(event), 0);
        if (event.event == RDMA_CM_EVENT_DISCONNECTED || (event.event == RDMA_CM_EVENT_CONNECT_REQUEST && ++requests % 3 == 0)) {
            EXPECT_EQ(server.destroy(event.id), 0);
            ++ended;
        } else if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            EXPECT_EQ(server.accept(event.id, 1 + kThreads * kRounds + requests), 0);
        }
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// ---- Datagrams ----

TEST_F(RdmaCm, ADatagramServiceTellsItsQueuePair) {
    listening = listener(of_device(1), 0, RDMA_PS_UDP);
    asking = routed(of_device(1, server.port(listening)), RDMA_PS_UDP);
    EXPECT_EQ(client.connect(asking, 0, std::string(181, 'x')), EINVAL);
    ASSERT_EQ(client.connect(asking, 0, "who"), 0);
    asked = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    expect_data(asked.param.ud.private_data, asked.param.ud.private_data_len, "who", 180);
    ASSERT_EQ(server.accept(asked.id, kAnsweringQp, "me"), 0);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(event.param.ud.qp_num, kAnsweringQp);
    EXPECT_EQ(event.param.ud.qkey, static_cast<std::uint32_t>(RDMA_UDP_QKEY));
    EXPECT_EQ(event.param.ud.ah_attr.is_global, 1);
    EXPECT_EQ(std::memcmp(event.param.ud.ah_attr.grh.dgid, devices()[1].gid.raw, 16), 0);
    expect_data(event.param.ud.private_data, event.param.ud.private_data_len, "me", 136);
    EXPECT_FALSE(server.readable()) << "who answers hears no more";

    for (const std::uint32_t state : {IBV_QPS_INIT, IBV_QPS_RTR}) {
        ib_uverbs_qp_attr attributes{};
        ASSERT_EQ(client.qp_attributes(asking, state, attributes), 0);
        EXPECT_EQ(attributes.qp_attr_mask, static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
        EXPECT_EQ(attributes.qkey, static_cast<std::uint32_t>(RDMA_UDP_QKEY));
    }
    EXPECT_EQ(server.accept(asked.id, kAnsweringQp), EINVAL);
}

TEST_F(RdmaCm, ADatagramServiceThatIsNotThereIsUnreachable) {
    asking = routed(of_device(0, 7), RDMA_PS_UDP);
    ASSERT_EQ(client.connect(asking, 0), 0);
    client.expect(RDMA_CM_EVENT_UNREACHABLE, 1);
}

TEST_F(RdmaCm, ADatagramServiceSaysNoOrGoes) {
    listening = listener(of_device(0), 0, RDMA_PS_UDP);
    const sockaddr_in there = of_device(0, server.port(listening));
    ASSERT_EQ(client.connect(routed(there, RDMA_PS_UDP), 0), 0);
    asked = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    EXPECT_EQ(server.reject(asked.id, "no"), 0);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_UNREACHABLE, 2);
    expect_data(event.param.ud.private_data, event.param.ud.private_data_len, "no", 136);
    ASSERT_EQ(client.connect(routed(there, RDMA_PS_UDP), 0), 0);
    asked = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    EXPECT_EQ(server.destroy(asked.id), 0);
    client.expect(RDMA_CM_EVENT_UNREACHABLE, 2);
}

// ---- Other commands ----

TEST_F(RdmaCm, AnIdentifierMovesToAnotherDescriptorWithItsEvents) {
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, of_device(0, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(client.resolve_route(id), 0);
    kernel::rdma_ucm_migrate_resp answer{};
    kernel::rdma_ucm_migrate_id command{};
    command.id = id;
    command.fd = static_cast<std::uint32_t>(client.descriptor());
    command.response = address_of(&answer);
    EXPECT_EQ(server.command(kernel::RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), 0);
    EXPECT_EQ(answer.events_reported, 1u);
    EXPECT_FALSE(client.readable());
    EXPECT_EQ(server.expect(RDMA_CM_EVENT_ROUTE_RESOLVED).id, id);
    EXPECT_EQ(client.destroy(id), EINVAL);
    EXPECT_EQ(server.command(kernel::RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), EINVAL) << "it is not there any more";
    command.fd = 4000;
    EXPECT_EQ(server.command(kernel::RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), ENOENT);
    command.fd = 0;
    EXPECT_EQ(server.command(kernel::RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), EINVAL);
}

TEST_F(RdmaCm, NobodyJoinsAMulticastGroup) {
    kernel::rdma_ucm_join_mcast join{};
    const sockaddr_in group = ipv4(htonl(0xe0000101), 0);
    join.id = client.id(RDMA_PS_UDP);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_JOIN_MCAST, join, 4), EINVAL) << "it has no address";
    join.addr_size = sizeof group;
    std::memcpy(&join.addr, &group, sizeof group);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_JOIN_MCAST, join, 4), EINVAL) << "no device";
    ASSERT_EQ(client.bind(join.id, of_device(0)), 0);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_JOIN_MCAST, join, 4), ENOSYS);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_LEAVE_MCAST, kernel::rdma_ucm_destroy_id{}, 4), ENOENT);
}

// ---- Removal ----

// No other test uses the third device.
TEST_F(RdmaCm, ARemovedDeviceIsToldToAllThatIsBoundToIt) {
    ASSERT_GE(devices().size(), 3u) << "MLX5_MODEL_DEVICES=3";
    listening = listener(of_device(2));
    const std::uint32_t everywhere = listener(any());
    asking = client.id();
    const sockaddr_in source = of_device(0);
    ASSERT_EQ(client.resolve(asking, of_device(2, server.port(listening)), &source), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(client.resolve_route(asking), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    ASSERT_EQ(client.connect(asking, kAskingQp), 0);
    answering = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    ASSERT_EQ(server.accept(answering, kAnsweringQp), 0);
    client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    ASSERT_EQ(client.ready(asking), 0);
    server.expect(RDMA_CM_EVENT_ESTABLISHED);
    const std::uint32_t on_its_way = routed(of_device(2, 7));

    remove_from_rdma_cm(devices()[2]);
    std::array<std::uint32_t, 2> told{server.expect(RDMA_CM_EVENT_DEVICE_REMOVAL).id, server.expect(RDMA_CM_EVENT_DEVICE_REMOVAL).id};
    std::sort(told.begin(), told.end());
    EXPECT_EQ(told, (std::array<std::uint32_t, 2>{std::min(listening, answering), std::max(listening, answering)}));
    EXPECT_FALSE(server.readable());
    std::vector<std::uint32_t> events;
    for (int i = 0; i < 2; ++i) {
        kernel::rdma_ucm_event_resp event{};
        ASSERT_TRUE(client.readable(kPatienceMs));
        ASSERT_EQ(client.get_event(event), 0);
        events.push_back(event.event);
        EXPECT_EQ(event.id, event.event == RDMA_CM_EVENT_DEVICE_REMOVAL ? on_its_way : asking);
    }
    std::sort(events.begin(), events.end());
    EXPECT_EQ(events, (std::vector<std::uint32_t>{RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DEVICE_REMOVAL}));

    EXPECT_EQ(server.disconnect(answering), EIO);
    EXPECT_EQ(server.listen(listening), EIO);
    EXPECT_EQ(client.connect(on_its_way, kAskingQp + 1), EIO);
    std::uint32_t reported = 0;
    EXPECT_EQ(server.destroy(answering, &reported), 0);
    EXPECT_EQ(reported, 2u);
    const std::uint32_t late = client.id();
    EXPECT_EQ(client.bind(late, of_device(2)), ENODEV);
    ASSERT_EQ(client.resolve(late, of_device(2, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_ERROR, static_cast<std::uint32_t>(-ENODEV));
    ASSERT_EQ(client.connect(routed(of_device(0, server.port(everywhere))), kAskingQp + 2), 0);
    server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
}

// ---- By librdmacm ----

struct Destroy {
    void operator()(rdma_cm_id* id) const {
        if (id->qp != nullptr) {
            rdma_destroy_qp(id);
        }
        EXPECT_EQ(rdma_destroy_id(id), 0);
    }
};
using Id = std::unique_ptr<rdma_cm_id, Destroy>;

Id synchronous_id(rdma_port_space space) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(nullptr, &id, nullptr, space), 0);
    return Id(id);
}

void create_qp(rdma_cm_id* id, ibv_qp_type type) {
    ibv_qp_init_attr attributes{};
    attributes.qp_type = type;
    attributes.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    ASSERT_EQ(rdma_create_qp(id, nullptr, &attributes), 0) << errno;
}

Id librdmacm_listener(rdma_port_space space) {
    Id id = synchronous_id(space);
    sockaddr_in here = of_device(0);
    EXPECT_EQ(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&here)), 0);
    EXPECT_EQ(rdma_listen(id.get(), 1), 0);
    return id;
}

Id librdmacm_route(rdma_port_space space, std::uint16_t port) {
    Id id = synchronous_id(space);
    sockaddr_in there = of_device(0, port);
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, reinterpret_cast<sockaddr*>(&there), kPatienceMs), 0);
    EXPECT_EQ(rdma_resolve_route(id.get(), kPatienceMs), 0);
    return id;
}

TEST(Librdmacm, ConnectsTwoQueuePairsAndDisconnectsThem) {
    const Id listening = librdmacm_listener(RDMA_PS_TCP);
    std::thread answers([&] {
        rdma_cm_id* request = nullptr;
        ASSERT_EQ(rdma_get_request(listening.get(), &request), 0);
        const Id id(request);
        create_qp(request, IBV_QPT_RC);
        ASSERT_EQ(rdma_accept(request, nullptr), 0) << errno;
        EXPECT_EQ(request->qp->state, IBV_QPS_RTS);
        EXPECT_EQ(rdma_disconnect(request), 0);
    });
    const Id asking = librdmacm_route(RDMA_PS_TCP, ntohs(rdma_get_src_port(listening.get())));
    create_qp(asking.get(), IBV_QPT_RC);
    rdma_conn_param param{};
    param.retry_count = 7;
    EXPECT_EQ(rdma_connect(asking.get(), &param), 0) << errno;
    EXPECT_EQ(asking->qp->state, IBV_QPS_RTS);
    EXPECT_EQ(rdma_disconnect(asking.get()), 0);
    answers.join();
}

TEST(Librdmacm, TellsOfADatagramService) {
    const Id listening = librdmacm_listener(RDMA_PS_UDP);
    std::thread answers([&] {
        rdma_cm_id* request = nullptr;
        ASSERT_EQ(rdma_get_request(listening.get(), &request), 0);
        const Id id(request);
        create_qp(request, IBV_QPT_UD);
        rdma_conn_param param{};
        param.qp_num = request->qp->qp_num;
        ASSERT_EQ(rdma_accept(request, &param), 0) << errno;
    });
    const Id asking = librdmacm_route(RDMA_PS_UDP, ntohs(rdma_get_src_port(listening.get())));
    rdma_conn_param param{};
    EXPECT_EQ(rdma_connect(asking.get(), &param), 0) << errno;
    ASSERT_NE(asking->event, nullptr);
    EXPECT_EQ(asking->event->event, RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(asking->event->param.ud.qkey, static_cast<std::uint32_t>(RDMA_UDP_QKEY));
    answers.join();
}

TEST(Librdmacm, IsToldOfARejection) {
    const Id listening = librdmacm_listener(RDMA_PS_TCP);
    std::thread answers([&] {
        rdma_cm_id* request = nullptr;
        ASSERT_EQ(rdma_get_request(listening.get(), &request), 0);
        const Id id(request);
        EXPECT_EQ(rdma_reject(request, "no", 2), 0);
    });
    const Id asking = librdmacm_route(RDMA_PS_TCP, ntohs(rdma_get_src_port(listening.get())));
    create_qp(asking.get(), IBV_QPT_RC);
    rdma_conn_param param{};
    EXPECT_NE(rdma_connect(asking.get(), &param), 0);
    EXPECT_EQ(errno, ECONNREFUSED);
    answers.join();
}

}  // namespace
}  // namespace mlx5_model
